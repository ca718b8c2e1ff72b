//! Commands of a mock box.

use std::fmt::Write as _;
use std::time::Duration;

use super::state::{Halt, Shell};
use super::streams::{Io, Source, complain};
use crate::{Error, Result as FileResult};

/// Approximate size of the pieces of output, in bytes.
const PIECE_BYTES: usize = 8192;

type Outcome = Result<i32, Halt>;

/// Runs the command `name`. Returns `None` if no command has this name.
pub(super) async fn run(name: &str, words: &[&str], shell: &Shell, io: &Io) -> Option<Outcome> {
    Some(match (name, words) {
        ("true", _) => Ok(0),
        ("false", _) => Ok(1),
        ("echo", words) => say(io, &words.join(" ")).await,
        ("printf", [format, args @ ..]) => io.stdout.write(printf(format, args)).await.map(|()| 0),
        ("cat", words) => cat(words, shell, io).await,
        ("pwd", []) => say(io, &shell.cwd).await,
        ("env", []) => {
            let lines: Vec<String> = shell.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
            say(io, &lines.join("\n")).await
        }
        ("printenv", [name]) => match shell.env.get(*name) {
            Some(value) => say(io, value).await,
            None => Ok(1),
        },
        ("seq", [last]) => seq(Some(1), last.parse().ok(), io).await,
        ("seq", [first, last]) => seq(first.parse().ok(), last.parse().ok(), io).await,
        ("yes", words) => yes(words, io).await,
        ("head", ["-c", bytes]) => match bytes.parse() {
            Ok(bytes) => copy(&io.stdin, bytes, io).await,
            Err(_) => unknown_use(name, io).await,
        },
        ("wc", ["-c"]) => {
            let mut bytes = 0;
            while let Some(piece) = io.stdin.read(PIECE_BYTES).await {
                bytes += piece.len();
            }
            say(io, &bytes.to_string()).await
        }
        ("sleep", [seconds]) => sleep(seconds, io).await,
        ("ls", words) => list(words.first().unwrap_or(&"."), shell, io).await,
        ("mkdir" | "rm" | "touch" | "ln", words) => change(name, words, shell, io).await,
        ("cd" | "env" | "exit" | "head" | "kill" | "printenv" | "printf" | "pwd" | "read" | "seq", _)
        | ("setsid" | "sh" | "sleep" | "wc", _) => unknown_use(name, io).await,
        _ => return None,
    })
}

async fn say(io: &Io, text: &str) -> Outcome {
    io.stdout.write(format!("{text}\n")).await.map(|()| 0)
}

async fn fail(io: &Io, message: &str) -> Outcome {
    Ok(complain(io, message, 1).await)
}

async fn unknown_use(name: &str, io: &Io) -> Outcome {
    fail(io, &format!("{name}: this usage is not supported in a mock box")).await
}

/// Formats as `printf` does. The format is used again while it takes arguments.
fn printf(format: &str, args: &[&str]) -> Vec<u8> {
    let pieces: Vec<Vec<u8>> = format.split("%s").map(unescaped).collect();
    let places = pieces.len() - 1;
    let rounds = if places == 0 { 1 } else { args.len().div_ceil(places).max(1) };
    let mut args = args.iter();
    let mut out = Vec::new();
    for _ in 0..rounds {
        for (at, piece) in pieces.iter().enumerate() {
            let value = if at == 0 { None } else { args.next() };
            out.extend_from_slice(value.map_or("", |value| value).as_bytes());
            out.extend_from_slice(piece);
        }
    }
    out
}

/// Replaces the escapes `\n` and `\NNN`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        out.push(match (first, after) {
            (b'\\', [b'n', after @ ..]) => {
                rest = after;
                b'\n'
            }
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                rest = after;
                (a & 3) << 6 | (b & 7) << 3 | (c & 7)
            }
            _ => *first,
        });
    }
    out
}

async fn cat(words: &[&str], shell: &Shell, io: &Io) -> Outcome {
    if words.is_empty() {
        return copy(&io.stdin, usize::MAX, io).await;
    }
    let mut code = 0;
    for path in words {
        let path = shell.absolute(path);
        let read = {
            let fs = shell.run.inside.fs();
            if fs.is_null(&path) { continue } else { fs.read(&path) }
        };
        match read {
            Ok((_, content)) => drop(copy(&Source::bytes(content), usize::MAX, io).await?),
            Err(error) => code = complain(io, &format!("cat: {error}"), 1).await,
        }
    }
    Ok(code)
}

/// Writes the next bytes of `from`, at most `bytes_max`.
async fn copy(from: &Source, bytes_max: usize, io: &Io) -> Outcome {
    let mut left = bytes_max;
    while left > 0 {
        let Some(piece) = from.read(left.min(PIECE_BYTES)).await else { break };
        left -= piece.len();
        io.stdout.write(piece).await?;
    }
    Ok(0)
}

async fn seq(first: Option<i64>, last: Option<i64>, io: &Io) -> Outcome {
    let Some((first, last)) = first.zip(last) else { return unknown_use("seq", io).await };
    let mut out = String::new();
    for number in first..=last {
        let _ = writeln!(out, "{number}");
        if out.len() >= PIECE_BYTES {
            io.stdout.write(std::mem::take(&mut out)).await?;
        }
    }
    io.stdout.write(out).await.map(|()| 0)
}

async fn yes(words: &[&str], io: &Io) -> Outcome {
    let line = if words.is_empty() { "y\n".to_owned() } else { format!("{}\n", words.join(" ")) };
    let piece = bytes::Bytes::from(line.repeat((PIECE_BYTES / line.len()).max(1)));
    loop {
        io.stdout.write(piece.clone()).await?;
    }
}

async fn sleep(seconds: &str, io: &Io) -> Outcome {
    let seconds = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let Some(duration) = seconds else { return unknown_use("sleep", io).await };
    tokio::time::sleep(duration).await;
    Ok(0)
}

async fn list(path: &str, shell: &Shell, io: &Io) -> Outcome {
    let listed = shell.run.inside.fs().list(&shell.absolute(path));
    match listed {
        Ok(entries) => {
            let visible = entries.iter().filter(|info| !info.name.starts_with('.'));
            let names: String = visible.map(|info| format!("{}\n", info.name)).collect();
            io.stdout.write(names).await.map(|()| 0)
        }
        Err(error) => fail(io, &format!("ls: {error}")).await,
    }
}

/// Runs a command that changes files and writes nothing.
async fn change(name: &str, words: &[&str], shell: &Shell, io: &Io) -> Outcome {
    let changed: FileResult<()> = {
        let mut fs = shell.run.inside.fs();
        match (name, words) {
            ("mkdir", ["-p", paths @ ..] | paths) => {
                paths.iter().try_for_each(|path| fs.make_dirs(&shell.absolute(path)))
            }
            ("rm", ["-r", paths @ ..]) => paths.iter().try_for_each(|path| fs.delete(&shell.absolute(path), true)),
            ("rm", paths) => paths.iter().try_for_each(|path| fs.delete(&shell.absolute(path), false)),
            ("touch", paths) => paths.iter().try_for_each(|path| {
                let path = shell.absolute(path);
                fs.append(&path, b"").or_else(|_| fs.write(&path, None, b""))
            }),
            ("ln", ["-s", target, path]) => fs.link(target, &shell.absolute(path)),
            _ => Err(Error::Invalid("this usage is not supported in a mock box".to_owned())),
        }
    };
    match changed {
        Ok(()) => Ok(0),
        Err(error) => fail(io, &format!("{name}: {error}")).await,
    }
}
