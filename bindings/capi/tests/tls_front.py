#!/usr/bin/env python3
"""Speaks TLS in front of a service: tls_front.py CERTIFICATE KEY PORT. Prints its own port, and ends with its input."""

import asyncio
import ssl
import sys


async def carry(reader, writer):
    """Moves bytes until either side ends."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()


async def main(certificate, key, port):
    """Serves until the input ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["http/1.1"])

    async def accept(reader, writer):
        try:
            onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", int(port))
        except ConnectionError:
            writer.close()
            return
        await asyncio.gather(carry(reader, onward_writer), carry(onward_reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
