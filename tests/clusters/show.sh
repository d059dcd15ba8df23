# Sourced by those who run tests as an ordinary user in a mount namespace of their own.

# Show folders to a user, at their own paths, though they are in a home of mode 700: what else is in that home
# is gone for everybody in this namespace.
#
#   usage: show_to USER FOLDER PATH...    FOLDER is made, and holds the mounts
show_to() {
    local user=$1 held=$2 path at above closed hidden=()
    shift 2
    for path in "$@"; do
        runuser -u "$user" -- test -x "$path" || hidden+=("$path")
    done
    for at in "${!hidden[@]}"; do
        mkdir -p "$held/$at"
        mount --bind "${hidden[at]}" "$held/$at"
    done
    for at in "${!hidden[@]}"; do
        above=${hidden[at]}
        while ! runuser -u "$user" -- test -x "$above"; do
            closed=$above
            above=$(dirname "$above")
            runuser -u "$user" -- test -x "$above" && break
        done
        mountpoint -q "${hidden[at]}" && continue
        [[ $closed == "${hidden[at]}" ]] || mount -t tmpfs -o mode=755 none "$closed"
        mkdir -p "${hidden[at]}"
        mount --bind "$held/$at" "${hidden[at]}"
    done
}
