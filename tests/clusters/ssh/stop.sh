#!/usr/bin/env bash
# Ends the sshd of a folder.
#
#   usage: stop.sh STATE
state=${1:?usage: stop.sh STATE}
. "$(dirname "${BASH_SOURCE[0]}")/../ending.sh"
gone TERM "$state/sshd.pid"
