program=$(command -v java) || exit 127
# Only a JDK has the compiler.
[ -x "$(dirname "$(readlink -f "$program")")/jshell" ] || exit 126
exec 3>&1 5>&2 4<&0 </dev/null
read -r marker length <&4
# `java` needs a file that it can seek in. This one has no name any more when it is written.
file=$(mktemp) && exec 8>"$file" 9<"$file" && rm "$file" || exit 1
# Larger blocks might come in parts.
dd bs=1 count="$length" <&4 >&8 2>/dev/null
printf 'class Marker { static final String TEXT = "%s"; }\n' "$marker" >&8
exec "$program" "$@" /proc/self/fd/9 8>&-
