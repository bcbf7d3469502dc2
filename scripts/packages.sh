#!/usr/bin/env bash
# Builds what users install, for this machine, into target/packages/:
#
#   broca_sdk-VERSION-….whl      the Python package
#   broca-sdk-VERSION.tgz        the Node package @broca/sdk
#   capi/                        headers, libraries, pkg-config and CMake files for C and C++
#   broca_server-VERSION-….whl   the broca command as a Python package, and
#   broca-server-VERSION.tgz     as a Node package, for broca's testing.Server
#
# Does little when nothing has changed. The paths are all that it prints.
set -euo pipefail
# shellcheck source=scripts/tools.sh
. "$(dirname "$0")/tools.sh"
# shellcheck source=scripts/installed.sh
. "$(dirname "$0")/installed.sh"
cd "$root"

need_python
need_node
need_c
for kind in python node capi server; do
    script=scripts/$kind-package.sh
    [ "$kind" = server ] && script=scripts/server-packages.sh
    say "building: $kind"
    bash "$script"
done
