//! A child over the bridge: the other end of the protocol, in Rust.

use super::line::{bytes, fields, number, text, text_word};
use crate::subject::{CLOSE_WORDS, Taken};
use broca_bridge::{Accepted, Batch, ChatStream, Error, Handle, Time, Trace, command, errors};
use bytes::Bytes;
use std::io::{self, BufRead, Write};
use std::net::IpAddr;

/// Answers requests until there are no more.
///
/// # Errors
/// When a request cannot be understood, or the pipes break.
pub fn answer_lines(input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut child = Child::default();
    for line in input.lines() {
        let mut answer = String::new();
        child.answer(&line?, &mut answer).map_err(io::Error::other)?;
        answer.push_str(".\n");
        output.write_all(answer.as_bytes())?;
        output.flush()?;
    }
    Ok(())
}

#[derive(Default)]
struct Child {
    handle: Option<Handle>,
    chat: Option<ChatStream>,
    batch: Batch,
}

impl Child {
    fn answer(&mut self, line: &str, out: &mut String) -> Result<(), String> {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["chat_new", status] => self.chat = Some(ChatStream::new(number(status)?)),
            ["chat_data", data] => self.chat()?.data(&given(data)?),
            ["chat_end"] => self.chat()?.end(),
            ["chat_broken"] => self.chat()?.broken(),
            ["chat_take"] => {
                let taken = self.chat()?.take();
                out.push_str(&format!("chat {}\n", text_word(Some(&taken))));
            }
            ["new", options, seed, wall] => {
                match Handle::new(&given(options)?, number(seed)?, number(wall)?) {
                    Ok(handle) => self.handle = Some(handle),
                    Err(error) => refuse(&error, out)?,
                }
            }
            _ => {
                self.input(&words, out)?;
                self.effects(out)?;
            }
        }
        Ok(())
    }

    fn input(&mut self, words: &[&str], out: &mut String) -> Result<(), String> {
        let handle = self.handle.as_ref().ok_or("there is no engine")?;
        let told = match words {
            ["command", now, json, parent, state] => {
                match handle.command(&given(json)?, trace(parent, state)?, time(now)?) {
                    Ok(op) => out.push_str(&format!("op {op}\n")),
                    Err(error) => refuse(&error, out)?,
                }
                Ok(())
            }
            ["answer", now, call, word, value, parent, state] => {
                let trace = trace(parent, state)?;
                let trace = (trace != Trace::default()).then_some(trace);
                let (value, call, now) = (bytes(value)?, number(call)?, time(now)?);
                let accepted = command::answer(word, value.as_deref(), trace)
                    .and_then(|answer| handle.answer(call, answer, now));
                match accepted {
                    Ok(accepted) => {
                        let in_time = u8::from(accepted == Accepted::Taken);
                        out.push_str(&format!("accepted {in_time}\n"));
                    }
                    Err(error) => refuse(&error, out)?,
                }
                Ok(())
            }
            ["cancel", now, op] => handle.cancel(number(op)?, time(now)?),
            ["resolved", now, req, why, addresses @ ..] => {
                let address = |word: &&str| -> Result<IpAddr, String> {
                    let address = text(word)?.unwrap_or_default();
                    address.parse().map_err(|_| format!("\"{address}\" is no address"))
                };
                let answer = match text(why)? {
                    Some(why) => Err(why),
                    None => Ok(addresses.iter().map(address).collect::<Result<_, _>>()?),
                };
                handle.resolved(number(req)?, answer, time(now)?)
            }
            ["connected", now, conn] => handle.connected(number(conn)?, time(now)?),
            ["tls_started", now, conn] => handle.tls_started(number(conn)?, time(now)?),
            ["data", now, conn, data] => handle.data(number(conn)?, &given(data)?, time(now)?),
            ["written", now, conn, size] => {
                handle.written(number(conn)?, number(size)?, time(now)?)
            }
            ["closed", now, conn, word] => {
                let why = CLOSE_WORDS.iter().find(|(_, known)| known == word);
                let (why, _) = why.ok_or_else(|| format!("there is no reason \"{word}\""))?;
                handle.closed(number(conn)?, *why, time(now)?)
            }
            ["timeout", now] => handle.timeout(time(now)?),
            ["steps", op, max_bytes] => {
                self.batch.clear();
                let over = handle.steps(number(op)?, number(max_bytes)?, &mut self.batch);
                for step in Taken::all_of(&self.batch)? {
                    out.push_str(&format!("step {}{}\n", step.kind, fields(&step)));
                }
                over.map(|over| out.push_str(&format!("over {}\n", u8::from(over))))
            }
            _ => return Err(format!("there is no request \"{}\"", words.first().unwrap_or(&""))),
        };
        match told {
            Ok(()) => Ok(()),
            Err(error) => refuse(&error, out),
        }
    }

    fn effects(&mut self, out: &mut String) -> Result<(), String> {
        let Some(handle) = &self.handle else { return Ok(()) };
        self.batch.clear();
        if let Err(error) = handle.effects(&mut self.batch) {
            return refuse(&error, out);
        }
        for effect in Taken::all_of(&self.batch)? {
            out.push_str(&format!("effect {}{}\n", effect.kind, fields(&effect)));
        }
        Ok(())
    }

    fn chat(&mut self) -> Result<&mut ChatStream, String> {
        self.chat.as_mut().ok_or_else(|| "there is no answer of a provider".to_owned())
    }
}

fn refuse(error: &Error, out: &mut String) -> Result<(), String> {
    let mut batch = Batch::new();
    errors::push_failed(&mut batch, error);
    for taken in Taken::all_of(&batch)? {
        out.push_str(&format!("error{}\n", fields(&taken)));
    }
    Ok(())
}

fn given(word: &str) -> Result<Bytes, String> {
    bytes(word)?.ok_or_else(|| "something that must be there is absent".to_owned())
}

fn time(word: &str) -> Result<Time, String> {
    number(word).map(Time::from_millis)
}

fn trace(parent: &str, state: &str) -> Result<Trace, String> {
    Ok(Trace { traceparent: text(parent)?, tracestate: text(state)? })
}
