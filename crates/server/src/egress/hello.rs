//! The name in the first message of a TLS client.
//!
//! RFC 8446 §4.1.2 has the message, RFC 6066 §3 the name in it, and RFC 9849 the encrypted form.

/// Longest first message that is read, in bytes. Those of today's clients have up to 2 KiB.
pub(super) const HELLO_BYTES_MAX: usize = 16 * 1024;

const RECORD_HEAD_BYTES: usize = 5;
/// First byte of TLS.
pub(super) const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ENCRYPTED_HELLO: u16 = 0xfe0d;
/// Type of a server name: the only one there is.
const HOST_NAME: u8 = 0;

/// First bytes that a client sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FirstBytes {
    /// More are needed.
    Incomplete,
    /// They are not those of TLS.
    NotTls,
    /// The whole first message of a TLS client.
    Hello(Hello),
    /// They begin like TLS, and are not the first message of a client.
    Malformed,
}

/// First message of a TLS client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hello {
    /// Name of the server that the client wants; `None` if it sends none.
    pub(super) name: Option<String>,
    /// True if another name may be in an encrypted part.
    pub(super) is_encrypted: bool,
}

/// Reads the first bytes of a client.
pub(super) fn read(bytes: &[u8]) -> FirstBytes {
    match bytes {
        [] => return FirstBytes::Incomplete,
        [HANDSHAKE] | [HANDSHAKE, 3, ..] => {}
        [HANDSHAKE, ..] => return FirstBytes::Malformed,
        _ => return FirstBytes::NotTls,
    }
    let Ok((message, is_cut)) = handshake(bytes) else { return FirstBytes::Malformed };
    let whole = message.get(..4).map(|head| 4 + number(&head[1..]));
    match (message.first(), whole) {
        (Some(kind), _) if *kind != CLIENT_HELLO => FirstBytes::Malformed,
        (_, Some(whole)) if whole > HELLO_BYTES_MAX => FirstBytes::Malformed,
        (_, Some(whole)) if message.len() >= whole => {
            hello(&message[4..whole]).map_or(FirstBytes::Malformed, FirstBytes::Hello)
        }
        _ if bytes.len() >= HELLO_BYTES_MAX || !is_cut => FirstBytes::Malformed,
        _ => FirstBytes::Incomplete,
    }
}

/// A message that is not as it has to be.
struct Malformed;

/// Returns the handshake bytes of all records, which may be cut anywhere, and whether more can
/// follow.
fn handshake(mut bytes: &[u8]) -> Result<(Vec<u8>, bool), Malformed> {
    let mut message = Vec::new();
    while !bytes.is_empty() {
        let Some((head, rest)) = bytes.split_at_checked(RECORD_HEAD_BYTES) else { break };
        let length = number(&head[3..]);
        // A record without bytes is an attempt to hide the message.
        if head[0] != HANDSHAKE || head[1] != 3 || length == 0 {
            return if message.is_empty() { Err(Malformed) } else { Ok((message, false)) };
        }
        let (record, rest) = rest.split_at(length.min(rest.len()));
        message.extend_from_slice(record);
        bytes = rest;
    }
    Ok((message, true))
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// Reads the body of the message: version, random, session, ciphers, compressions, extensions.
fn hello(body: &[u8]) -> Option<Hello> {
    let mut reader = Reader(body);
    reader.take(2 + 32)?;
    reader.vector(1)?;
    reader.vector(2)?;
    reader.vector(1)?;
    let mut hello = Hello { name: None, is_encrypted: false };
    if reader.0.is_empty() {
        return Some(hello);
    }
    let mut extensions = Reader(reader.vector(2)?);
    if !reader.0.is_empty() {
        return None;
    }
    let mut has_name = false;
    while !extensions.0.is_empty() {
        let kind = u16::try_from(number(extensions.take(2)?)).ok()?;
        let content = extensions.vector(2)?;
        match kind {
            // Of two names it would be open which the server takes.
            SERVER_NAME if has_name => return None,
            SERVER_NAME => {
                has_name = true;
                hello.name = Some(server_name(content)?);
            }
            ENCRYPTED_HELLO => hello.is_encrypted = true,
            _ => {}
        }
    }
    Some(hello)
}

fn server_name(content: &[u8]) -> Option<String> {
    let mut whole = Reader(content);
    let mut names = Reader(whole.vector(2)?);
    if names.take(1)? != [HOST_NAME] {
        return None;
    }
    let name = names.vector(2)?;
    // More names, or bytes behind the list.
    if !names.0.is_empty() || !whole.0.is_empty() {
        return None;
    }
    String::from_utf8(name.to_vec()).ok()
}

/// Bytes that are not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Takes bytes that begin with their count, which has `width` bytes.
    fn vector(&mut self, width: usize) -> Option<&'a [u8]> {
        let count = number(self.take(width)?);
        self.take(count)
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn vector(width: usize, content: &[u8]) -> Vec<u8> {
        let count = content.len().to_be_bytes();
        [&count[count.len() - width..], content].concat()
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [kind.to_be_bytes().to_vec(), vector(2, content)].concat()
    }

    fn name(name: &str) -> Vec<u8> {
        extension(SERVER_NAME, &vector(2, &[vec![HOST_NAME], vector(2, name.as_bytes())].concat()))
    }

    /// Returns the message of a client with these extensions.
    fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
        let body = [
            vec![3, 3],
            vec![7; 32],
            vector(1, &[9; 32]),
            vector(2, &[0x13, 0x01]),
            vector(1, &[0]),
            vector(2, &extensions.concat()),
        ];
        [vec![CLIENT_HELLO], vector(3, &body.concat())].concat()
    }

    /// Puts a message into records of this many bytes.
    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|piece| [vec![HANDSHAKE, 3, 1], vector(2, piece)].concat()).collect()
    }

    fn whole(extensions: &[Vec<u8>]) -> FirstBytes {
        read(&records(&message(extensions), 16_384))
    }

    fn hello(name: Option<&str>, is_encrypted: bool) -> FirstBytes {
        FirstBytes::Hello(Hello { name: name.map(str::to_owned), is_encrypted })
    }

    #[test]
    fn the_name_is_found_among_the_extensions() {
        let other = extension(43, &[2, 3, 4]);
        assert_eq!(whole(&[other.clone(), name("a.example"), other.clone()]), hello(Some("a.example"), false));
        assert_eq!(whole(std::slice::from_ref(&other)), hello(None, false));
        assert_eq!(whole(&[]), hello(None, false));
        let encrypted = extension(ENCRYPTED_HELLO, &[0; 64]);
        assert_eq!(whole(&[name("a.example"), encrypted]), hello(Some("a.example"), true));
    }

    #[test]
    fn a_message_may_come_in_any_pieces() {
        let message = message(&[name("a.example")]);
        for size in [1, 2, 7, 50] {
            let bytes = records(&message, size);
            for end in 0..bytes.len() {
                assert_eq!(read(&bytes[..end]), FirstBytes::Incomplete, "{size} {end}");
            }
            assert_eq!(read(&bytes), hello(Some("a.example"), false));
            assert_eq!(read(&[&bytes[..], b"more"].concat()), hello(Some("a.example"), false));
        }
    }

    #[test]
    fn what_is_not_tls_is_known_by_its_first_byte() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x", &[0x15, 3, 3], &[0]] {
            assert_eq!(read(bytes), FirstBytes::NotTls, "{bytes:?}");
        }
        assert_eq!(read(b""), FirstBytes::Incomplete);
    }

    #[test]
    fn a_message_that_hides_its_name_is_malformed() {
        let two_names = [vec![HOST_NAME], vector(2, b"a.example")].concat().repeat(2);
        for extensions in [
            vec![name("a.example"), name("b.example")],
            vec![extension(SERVER_NAME, &vector(2, &two_names))],
            vec![extension(SERVER_NAME, &[])],
            vec![extension(SERVER_NAME, &vector(2, &[1, 0, 0]))],
            vec![vec![0, 0, 0, 9, 1]],
        ] {
            assert_eq!(whole(&extensions), FirstBytes::Malformed, "{extensions:?}");
        }
        let message = message(&[name("a.example")]);
        let mut other = records(&message, 16_384);
        other[5] = 2;
        assert_eq!(read(&other), FirstBytes::Malformed, "a message of a server");
        assert_eq!(read(&[HANDSHAKE, 2, 0, 0, 1, 1]), FirstBytes::Malformed);
        assert_eq!(read(&[HANDSHAKE, 3, 1, 0, 0]), FirstBytes::Malformed, "a record without bytes");
        assert_eq!(read(&[HANDSHAKE, 3, 1, 0, 4, 1, 1, 0, 0]), FirstBytes::Malformed, "64 KiB long");
        let cut = [&records(&message[..20], 20)[..], &[0x17, 3, 3, 0, 1, 0]].concat();
        assert_eq!(read(&cut), FirstBytes::Malformed, "another record in between");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_fail(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0..200_usize) {
            read(&bytes);
            let mut changed = records(&message(&[name("a.example"), extension(43, &[2, 3, 4])]), 60);
            for (index, byte) in bytes.iter().take(4).enumerate() {
                let at = (at + index * 37) % changed.len();
                changed[at] = *byte;
            }
            if let FirstBytes::Hello(hello) = read(&changed) {
                prop_assert!(hello.name.is_none_or(|name| name.len() <= changed.len()));
            }
        }
    }
}
