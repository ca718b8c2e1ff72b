#!/bin/sh
# The same program as in Python, as far as one connection of busybox can be it.
take() { IFS= read -r got || [ -n "$got" ]; got=${got%"$(printf '\r')"}; }
take && line=$got
head=
while take && [ -n "$got" ]; do head="$head, \"$got\""; done
case $head in
# What is left unread resets the connection.
*chunked*) while take && [ -n "$got" ]; do :; done ;;
esac
target=${line#* }
target=${target%% *}
path=${target%%\?*}
case $path in
/raw/*) printf "$(printf %s "${path#/raw/}" | sed 's/../\\x&/g')" ;;
/zeros/*) printf 'HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n' "${path#/zeros/}" ;;
*)
    told="{\"line\": \"$line\", \"head\": [${head#, }], \"body\": 0}"
    printf 'HTTP/1.1 200 OK\r\nContent-Length: %s\r\nSet-Cookie: own=1; Domain=box.example\r\n' "${#told}"
    printf 'Set-Cookie: tidebox-preview=x\r\n\r\n%s' "$told"
    ;;
esac
