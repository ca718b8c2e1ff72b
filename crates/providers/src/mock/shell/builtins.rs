//! The commands of a mock box.

use std::fmt::Write as _;
use std::time::Duration;

use super::state::{Flow, PID, Shell, complain};
use super::streams::{Halt, Io};
use crate::{FileInfo, Result as FileResult};

/// Approximate size of the pieces of output, in bytes.
const PIECE_BYTES: usize = 8192;

type Outcome = Result<i32, Halt>;

/// Runs the command `name`, which is one of [`super::COMMANDS`].
pub(super) async fn run(name: &str, args: &[String], shell: &Shell, io: &Io) -> Outcome {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match name {
        "false" => Ok(1),
        "echo" => echo(&words, io).await,
        "printf" => printf(&words, io).await,
        "cat" => cat(&words, shell, io).await,
        "pwd" => say(io, &shell.cwd).await,
        "env" => {
            let lines = shell.env.iter().fold(String::new(), |mut lines, (name, value)| {
                let _ = writeln!(lines, "{name}={value}");
                lines
            });
            io.stdout.write(lines).await.map(|()| 0)
        }
        "printenv" => match words.first().and_then(|name| shell.env.get(*name)) {
            Some(value) => say(io, value).await,
            None => Ok(1),
        },
        "seq" => seq(&words, io).await,
        "yes" => yes(&words, io).await,
        "head" => head(&words, io).await,
        "wc" => count(&words, io).await,
        "sleep" => sleep(&words, io).await,
        "test" => Ok(i32::from(!test(&words, shell))),
        "[" => Ok(i32::from(!test(words.strip_suffix(&["]"]).unwrap_or(&words), shell))),
        "ls" => list(&words, shell, io).await,
        "mkdir" | "rm" | "touch" | "ln" | "chmod" => change(name, &words, shell, io).await,
        // For `:`, `true`, and `setsid` without a command.
        _ => Ok(0),
    }
}

async fn say(io: &Io, text: &str) -> Outcome {
    io.stdout.write(format!("{text}\n")).await.map(|()| 0)
}

async fn fail(io: &Io, message: &str) -> Outcome {
    complain(io, message, 1).await;
    Ok(1)
}

async fn echo(words: &[&str], io: &Io) -> Outcome {
    match words {
        ["-n", rest @ ..] => io.stdout.write(rest.join(" ")).await.map(|()| 0),
        words => say(io, &words.join(" ")).await,
    }
}

/// Implements `kill`: `kill -N $$` ends the shell by signal N. There is no other process to see.
pub(super) async fn kill(args: &[String], io: &Io) -> Flow {
    let [signal, pid] = args else { return complain(io, "usage: kill -N PID", 2).await };
    let number = signal.strip_prefix('-').and_then(|number| number.parse().ok());
    match number.filter(|number| (1..=64).contains(number)) {
        Some(number) if pid == PID => Flow::Exit(128 + number),
        Some(_) => complain(io, &format!("kill: {pid}: no such process"), 1).await,
        None => complain(io, &format!("kill: {signal}: not the number of a signal"), 2).await,
    }
}

async fn printf(words: &[&str], io: &Io) -> Outcome {
    let Some((format, mut args)) = words.split_first() else {
        return fail(io, "usage: printf FORMAT [ARGUMENT…]").await;
    };
    loop {
        let before = args.len();
        let mut out = Vec::new();
        let mut rest = format.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'\\' => rest = escape(rest, &mut out),
                b'%' => {
                    let kind = rest.first().copied();
                    rest = rest.get(1..).unwrap_or_default();
                    match kind {
                        Some(b's' | b'd') => {
                            let (value, left) = args.split_first().map_or(("", args), |(value, left)| (*value, left));
                            args = left;
                            let is_empty_number = kind == Some(b'd') && value.is_empty();
                            out.extend_from_slice(if is_empty_number { b"0" } else { value.as_bytes() });
                        }
                        Some(b'%') => out.push(b'%'),
                        _ => return fail(io, "printf: only %s, %d and %% are supported").await,
                    }
                }
                byte => out.push(byte),
            }
        }
        io.stdout.write(out).await?;
        // The format is used again while it takes arguments.
        if args.is_empty() || args.len() == before {
            return Ok(0);
        }
    }
}

/// Writes the character of an escape, and returns the text after it.
fn escape<'a>(rest: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
    let digits = |digits: &[u8], radix| {
        std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, radix).ok())
    };
    match rest {
        [b'x', hex @ ..] => {
            let len = hex.iter().take(2).take_while(|byte| byte.is_ascii_hexdigit()).count();
            out.extend(digits(&hex[..len], 16).and_then(|value| u8::try_from(value).ok()));
            &hex[len..]
        }
        [b'0'..=b'7', ..] => {
            let len = rest.iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
            out.extend(digits(&rest[..len], 8).and_then(|value| u8::try_from(value & 0xff).ok()));
            &rest[len..]
        }
        [byte, after @ ..] => {
            match byte {
                b'n' => out.push(b'\n'),
                b't' => out.push(b'\t'),
                b'r' => out.push(b'\r'),
                b'\\' => out.push(b'\\'),
                byte => out.extend([b'\\', *byte]),
            }
            after
        }
        [] => {
            out.push(b'\\');
            rest
        }
    }
}

async fn cat(words: &[&str], shell: &Shell, io: &Io) -> Outcome {
    let mut code = 0;
    for path in if words.is_empty() { &["-"] } else { words } {
        if *path == "-" {
            while let Some(piece) = io.stdin.read(PIECE_BYTES).await {
                io.stdout.write(piece).await?;
            }
            continue;
        }
        let path = shell.absolute(path);
        let read = {
            let fs = shell.run.inside.fs();
            if fs.is_null(&path) { continue } else { fs.read(&path) }
        };
        match read {
            Ok((_, mut content)) => {
                while !content.is_empty() {
                    io.stdout.write(content.split_to(content.len().min(PIECE_BYTES))).await?;
                }
            }
            Err(error) => code = fail(io, &format!("cat: {error}")).await?,
        }
    }
    Ok(code)
}

async fn seq(words: &[&str], io: &Io) -> Outcome {
    let numbers: Option<Vec<i64>> = words.iter().map(|word| word.parse().ok()).collect();
    let (first, last) = match numbers.as_deref() {
        Some([last]) => (1, *last),
        Some([first, last]) => (*first, *last),
        _ => return fail(io, "usage: seq [FIRST] LAST").await,
    };
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

async fn head(words: &[&str], io: &Io) -> Outcome {
    let (unit, number) = match words {
        [] => ("-n", Some(10)),
        [unit @ ("-c" | "-n"), number] => (*unit, number.parse::<usize>().ok()),
        _ => ("", None),
    };
    let Some(mut left) = number else { return fail(io, "usage: head [-c BYTES | -n LINES]").await };
    while left > 0 {
        let Some(piece) = io.stdin.read(if unit == "-c" { left.min(PIECE_BYTES) } else { PIECE_BYTES }).await else {
            break;
        };
        if unit == "-c" {
            left -= piece.len();
            io.stdout.write(piece).await?;
            continue;
        }
        let mut end = piece.len();
        for (at, _) in piece.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
            left -= 1;
            if left == 0 {
                end = at + 1;
                break;
            }
        }
        io.stdout.write(piece.slice(..end)).await?;
    }
    Ok(0)
}

async fn count(words: &[&str], io: &Io) -> Outcome {
    let (mut lines, mut bytes) = (0, 0);
    while let Some(piece) = io.stdin.read(PIECE_BYTES).await {
        bytes += piece.len();
        lines += piece.iter().filter(|byte| **byte == b'\n').count();
    }
    match words {
        ["-c"] => say(io, &bytes.to_string()).await,
        ["-l"] => say(io, &lines.to_string()).await,
        _ => fail(io, "usage: wc -c | wc -l").await,
    }
}

async fn sleep(words: &[&str], io: &Io) -> Outcome {
    let seconds = match words {
        [seconds] => seconds.parse::<f64>().ok(),
        _ => None,
    };
    match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
        Some(duration) => {
            tokio::time::sleep(duration).await;
            Ok(0)
        }
        None => fail(io, "usage: sleep SECONDS").await,
    }
}

fn test(words: &[&str], shell: &Shell) -> bool {
    let info = |path: &str| shell.run.inside.fs().stat(&shell.absolute(path)).ok();
    match words {
        ["-e", path] => info(path).is_some(),
        ["-f", path] => info(path).is_some_and(|info| !info.is_dir && !info.is_symlink),
        ["-d", path] => shell.run.inside.fs().is_dir(&shell.absolute(path)),
        _ => false,
    }
}

async fn list(words: &[&str], shell: &Shell, io: &Io) -> Outcome {
    let mut code = 0;
    for path in if words.is_empty() { &["."] } else { words } {
        let full = shell.absolute(path);
        let listed = {
            let fs = shell.run.inside.fs();
            if fs.is_dir(&full) { fs.list(&full) } else { fs.stat(&full).map(|info| vec![info]) }
        };
        match listed {
            Ok(entries) => {
                let visible = |info: &&FileInfo| !info.name.starts_with('.');
                let names = entries.iter().filter(visible).fold(String::new(), |names, info| names + &info.name + "\n");
                io.stdout.write(names).await?;
            }
            Err(error) => code = fail(io, &format!("ls: {error}")).await?,
        }
    }
    Ok(code)
}

/// Implements the commands that change files and write nothing.
async fn change(name: &str, words: &[&str], shell: &Shell, io: &Io) -> Outcome {
    let (flags, paths): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('-') && word.len() > 1);
    let has = |flag: char| flags.iter().any(|word| word.contains(flag));
    let full: Vec<String> = paths.iter().map(|path| shell.absolute(path)).collect();
    let changed: FileResult<()> = {
        let mut fs = shell.run.inside.fs();
        match (name, &paths[..]) {
            ("mkdir", [_, ..]) => full.iter().try_for_each(|path| fs.make_dirs(path)),
            ("rm", [_, ..]) => full.iter().try_for_each(|path| fs.delete(path, has('r'))),
            ("touch", [_, ..]) => full.iter().try_for_each(|path| match fs.read(path) {
                Ok(_) => fs.append(path, b""),
                Err(_) => fs.write(path, None, b""),
            }),
            ("ln", [target, _]) if has('s') => fs.link(target, &full[1]),
            ("chmod", [mode, _]) => match u32::from_str_radix(mode, 8) {
                Ok(mode) if mode <= 0o7777 => fs.chmod(&full[1], mode),
                _ => Err(crate::Error::Invalid(format!("{mode} is not an octal mode"))),
            },
            _ => Err(crate::Error::Invalid("this usage is not supported in a mock box".to_owned())),
        }
    };
    match changed {
        Ok(()) => Ok(0),
        Err(error) => fail(io, &format!("{name}: {error}")).await,
    }
}
