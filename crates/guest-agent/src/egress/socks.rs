//! SOCKS5, without the binding of ports and without UDP.
//!
//! Sources: <https://www.rfc-editor.org/rfc/rfc1928>, <https://www.rfc-editor.org/rfc/rfc1929>.

use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::inside;
use super::output::Output;
use super::refusal::Refusal;
use super::requests::Requests;
use super::target::Target;
use crate::link::Link;

/// First byte of each message but that of the password.
pub(super) const VERSION: u8 = 5;
const PASSWORD_VERSION: u8 = 1;
const NO_PASSWORD: u8 = 0;
const PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;
const DONE: u8 = 0;
const NO_SUCH_COMMAND: u8 = 7;
const NO_SUCH_ADDRESS: u8 = 8;

/// Serves one connection of a process. The process has `wait` for its questions.
pub(super) async fn serve(
    mut stream: TcpStream,
    requests: &Requests,
    credentials: Option<(&str, &str)>,
    permit: Rc<OwnedSemaphorePermit>,
    wait: Duration,
) {
    let Ok(Ok(Some(asked))) = timeout(wait, greet(&mut stream, credentials)).await else { return };
    if let Ok(target) = &asked
        && let Some(inside) = requests.dial_inside(target).await
    {
        if reply(&mut stream, DONE).await.is_ok() {
            drop(inside::relay(stream, inside).await);
        }
        return;
    }
    let answer = match asked {
        Ok(target) => tokio::select! {
            answer = requests.ask(&target) => answer.map_err(|refusal| refusal.socks()),
            () = hung_up(&stream) => return,
        },
        Err(code) => Err(code),
    };
    // A process that does not read its answer has hung up, and that ends the connection anyway.
    match answer {
        Ok(accepted) => {
            if reply(&mut stream, DONE).await.is_ok() {
                let output = Link::open(stream, Bytes::new(), accepted.input, permit);
                drop(accepted.reply.send(Output::Tunnel(output)));
            }
        }
        Err(code) => drop(reply(&mut stream, code).await),
    }
}

/// Waits until the process has hung up. One that sends bytes before it has an answer is not watched.
async fn hung_up(stream: &TcpStream) {
    if let Ok(1..) = stream.peek(&mut [0]).await {
        pending().await
    }
}

async fn reply(stream: &mut (impl AsyncWrite + Unpin), code: u8) -> io::Result<()> {
    // The address on the other side is the server's, and none of the process's business.
    stream.write_all(&[VERSION, code, 0, IPV4, 0, 0, 0, 0, 0, 0]).await
}

/// Reads what the process asks for, or the code to answer with. `None` for one that does not speak
/// SOCKS5, or does not know the password.
async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    credentials: Option<(&str, &str)>,
) -> io::Result<Option<Result<Target, u8>>> {
    let [version, count] = read(stream).await?;
    if version != VERSION {
        return Ok(None);
    }
    let methods = read_text(stream, count).await?;
    let method = match credentials {
        None if methods.contains(&NO_PASSWORD) => NO_PASSWORD,
        _ if methods.contains(&PASSWORD) => PASSWORD,
        _ => NO_METHOD,
    };
    stream.write_all(&[VERSION, method]).await?;
    if method == NO_METHOD || method == PASSWORD && !is_known(stream, credentials).await? {
        return Ok(None);
    }
    let [version, command, _, kind] = read(stream).await?;
    if version != VERSION {
        return Ok(None);
    }
    let host = match kind {
        IPV4 => Ipv4Addr::from(read(stream).await?).to_string(),
        IPV6 => Ipv6Addr::from(read::<16>(stream).await?).to_string(),
        NAME => {
            let [length] = read(stream).await?;
            let name = read_text(stream, length).await?;
            // The port is read all the same, for an answer that the process can read.
            String::from_utf8(name).unwrap_or_default()
        }
        _ => return Ok(Some(Err(NO_SUCH_ADDRESS))),
    };
    let port = u16::from_be_bytes(read(stream).await?);
    if command != CONNECT {
        return Ok(Some(Err(NO_SUCH_COMMAND)));
    }
    Ok(Some(Target::new(host, port).map_err(|refusal: Refusal| refusal.socks())))
}

/// Reads a user and a password, and answers whether they are the right ones. Without `credentials`
/// any are.
async fn is_known(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    credentials: Option<(&str, &str)>,
) -> io::Result<bool> {
    let [version, length] = read(stream).await?;
    let user = read_text(stream, length).await?;
    let [length] = read(stream).await?;
    let password = read_text(stream, length).await?;
    let is_right = credentials.is_none_or(|right| (right.0.as_bytes(), right.1.as_bytes()) == (&*user, &*password));
    let is_known = version == PASSWORD_VERSION && is_right;
    stream.write_all(&[PASSWORD_VERSION, u8::from(!is_known)]).await?;
    Ok(is_known)
}

async fn read<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn read_text(stream: &mut (impl AsyncRead + Unpin), length: u8) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

#[cfg(test)]
mod test {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    type Read = io::Result<Option<Result<Target, u8>>>;

    /// Reads `bytes` as all that a process sends.
    fn of(bytes: &[u8], credentials: Option<(&str, &str)>) -> Read {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(greet(&mut tokio::io::join(bytes, Vec::new()), credentials))
    }

    fn question(kind: u8, address: &[u8], port: u16) -> Vec<u8> {
        [&[5, 1, 0, 5, 1, 0, kind], address, &port.to_be_bytes()].concat()
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_error_or_a_target_that_can_be(
            begins in 0..4_usize,
            bytes in vec(any::<u8>(), 0..600),
            password in any::<bool>(),
        ) {
            let begin: [&[u8]; 4] = [&[], &[5], &[5, 1, 0, 5, 1, 0], &[5, 1, 2, 1]];
            let bytes = [begin[begins], &bytes].concat();
            if let Ok(Some(Ok(target))) = of(&bytes, password.then_some(("user", "password"))) {
                prop_assert!(!target.host.is_empty() && target.host.len() <= 255 && target.port > 0);
            }
        }

        #[test]
        fn a_whole_question_is_read_as_it_was_asked_and_no_part_of_it_is(
            name in "[ -~]{1,255}",
            v4 in any::<[u8; 4]>(),
            v6 in any::<[u8; 16]>(),
            port in 1..=u16::MAX,
        ) {
            let length = u8::try_from(name.len()).unwrap();
            for (bytes, host) in [
                (question(NAME, &[&[length], name.as_bytes()].concat(), port), name.clone()),
                (question(IPV4, &v4, port), Ipv4Addr::from(v4).to_string()),
                (question(IPV6, &v6, port), Ipv6Addr::from(v6).to_string()),
            ] {
                let target = of(&bytes, None).unwrap().unwrap().unwrap();
                prop_assert_eq!((target.host, target.port), (host, port));
                for end in 0..bytes.len() {
                    prop_assert!(of(&bytes[..end], None).is_err());
                }
            }
        }
    }

    #[test]
    fn only_the_right_password_is_taken() {
        let with = |user: &str, password: &str| {
            let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
            let rest = [&text(user)[..], &text(password), &[5, 1, 0, 1, 1, 2, 3, 4, 0, 80]].concat();
            of(&[&[5, 1, 2, 1], &rest[..]].concat(), Some(("user", "right"))).unwrap().is_some()
        };
        assert!(with("user", "right"));
        for (user, password) in [("user", "wrong"), ("user", ""), ("", "right"), ("user", "right "), ("userr", "ight")]
        {
            assert!(!with(user, password), "{user} {password}");
        }
        assert!(of(&question(IPV4, &[1, 2, 3, 4], 80), Some(("user", "right"))).unwrap().is_none());
    }
}
