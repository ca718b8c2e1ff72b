//! Questions to a name server, and their answers.
//!
//! One question of one message is all that resolvers send, and its name is never compressed: there is
//! nothing before it.
//!
//! Source: <https://www.rfc-editor.org/rfc/rfc1035>

use std::net::Ipv4Addr;

use super::names::{Found, Names};

/// Length of the head of a message.
const HEAD_BYTES: usize = 12;
/// Longest name in a message, with the lengths of its labels and the end.
const NAME_BYTES_MAX: usize = 255;
/// Longest label of a name.
const LABEL_BYTES_MAX: u8 = 63;
/// Seconds for which an answer holds. It is asked for again soon, which keeps the address in use.
const TTL: u32 = 60;

/// Bits of the second word of a head.
const IS_ANSWER: u16 = 0x8000;
const OPERATION: u16 = 0x7800;
const RECURSION_DESIRED: u16 = 0x0100;
const RECURSION_AVAILABLE: u16 = 0x0080;
/// Codes of an answer.
const DONE: u16 = 0;
const MALFORMED: u16 = 1;
const FAILED: u16 = 2;
const NO_SUCH_NAME: u16 = 3;
const NOT_IMPLEMENTED: u16 = 4;
/// Types of records, and a question for all of them.
const A: u16 = 1;
const PTR: u16 = 12;
const ANY: u16 = 255;
/// First and last of the types that are transfers and not records.
const TRANSFERS: [u16; 2] = [251, 252];
/// Class of the internet.
const INTERNET: u16 = 1;
/// Pointer to the name of the question.
const NAME_OF_QUESTION: [u8; 2] = [0xc0, HEAD_BYTES as u8];

/// Outcome of a question.
enum Reply {
    Code(u16),
    Address(Ipv4Addr),
    Name(String),
}

/// Returns the answer to a message, of at most 512 bytes. `None` for one that cannot have one. `is_cut`
/// if the message was longer than `message`.
pub(super) fn answer(message: &[u8], is_cut: bool, names: &Names) -> Option<Vec<u8>> {
    let head = message.first_chunk::<HEAD_BYTES>()?;
    let flags = word(head, 2);
    if flags & IS_ANSWER != 0 {
        return None;
    }
    let (question, reply) = if flags & OPERATION != 0 {
        (None, Reply::Code(NOT_IMPLEMENTED))
    } else {
        let question = Question::parse(&message[HEAD_BYTES..]).filter(|_| word(head, 4) == 1 && !is_cut);
        let reply = question.as_ref().map_or(Reply::Code(MALFORMED), |question| question.reply(names));
        (question, reply)
    };
    let (code, record) = match reply {
        Reply::Code(code) => (code, None),
        Reply::Address(address) => (DONE, Some((A, address.octets().to_vec()))),
        Reply::Name(name) => (DONE, Some((PTR, encode(&name)))),
    };
    let flags = IS_ANSWER | flags & (OPERATION | RECURSION_DESIRED) | RECURSION_AVAILABLE | code;
    let counts = [u16::from(question.is_some()), u16::from(record.is_some()), 0, 0];
    let mut answer = head[..2].to_vec();
    [flags].iter().chain(&counts).for_each(|word| answer.extend(word.to_be_bytes()));
    answer.extend(question.map_or(&[][..], |question| question.bytes));
    if let Some((kind, data)) = record {
        answer.extend(NAME_OF_QUESTION);
        [kind, INTERNET].iter().for_each(|word| answer.extend(word.to_be_bytes()));
        answer.extend(TTL.to_be_bytes());
        answer.extend((data.len() as u16).to_be_bytes());
        answer.extend(data);
    }
    Some(answer)
}

fn word(head: &[u8; HEAD_BYTES], at: usize) -> u16 {
    u16::from_be_bytes([head[at], head[at + 1]])
}

/// A question, and its bytes in the message.
struct Question<'a> {
    bytes: &'a [u8],
    /// Name in lower case, without the dot at its end. `None` if no host can have it.
    name: Option<String>,
    kind: u16,
    class: u16,
}

impl Question<'_> {
    fn parse(bytes: &[u8]) -> Option<Question<'_>> {
        let mut name = Some(String::new());
        let mut at = 0;
        loop {
            let length = *bytes.get(at)?;
            at += 1;
            if length == 0 {
                break;
            }
            let label = bytes.get(at..at + usize::from(length)).filter(|_| length <= LABEL_BYTES_MAX)?;
            at += label.len();
            if at >= NAME_BYTES_MAX {
                return None;
            }
            name = name.filter(|_| label.iter().all(|byte| is_plain(*byte))).map(|mut name| {
                if !name.is_empty() {
                    name.push('.');
                }
                name.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
                name
            });
        }
        let bytes = bytes.get(..at + 4)?;
        let [kind, class] = [at, at + 2].map(|at| u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        Some(Question { bytes, name, kind, class })
    }

    fn reply(&self, names: &Names) -> Reply {
        if TRANSFERS.contains(&self.kind) || self.class != INTERNET {
            return Reply::Code(NOT_IMPLEMENTED);
        }
        let Some(name) = self.name.as_deref() else { return Reply::Code(NO_SUCH_NAME) };
        if name.ends_with(".arpa") {
            return reverse(name, self.kind, names);
        }
        match self.kind {
            A | ANY if name.is_empty() => Reply::Code(DONE),
            A | ANY if name == "localhost" || name.ends_with(".localhost") => Reply::Address(Ipv4Addr::LOCALHOST),
            A | ANY => names.address_of(name).map_or(Reply::Code(FAILED), Reply::Address),
            // There is a name, and nothing of this type for it.
            _ => Reply::Code(DONE),
        }
    }
}

/// Returns whether a byte can be part of the name of a host.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

/// Answers the question for the name of an address.
fn reverse(name: &str, kind: u16, names: &Names) -> Reply {
    let found = name.strip_suffix(".in-addr.arpa").filter(|_| [PTR, ANY].contains(&kind)).and_then(|parts| {
        let address: Ipv4Addr = parts.split('.').rev().collect::<Vec<_>>().join(".").parse().ok()?;
        match names.name_of(address.into()) {
            Found::Name(name) => Some(name.to_string()),
            Found::Gone => None,
            Found::NoName => address.is_loopback().then(|| "localhost".to_owned()),
        }
    });
    found.map_or(Reply::Code(NO_SUCH_NAME), Reply::Name)
}

/// Returns a name as it is in messages. Each of its labels came in one.
fn encode(name: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        bytes.push(label.len() as u8);
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod test {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn message(flags: u16, counts: [u16; 4], rest: &[u8]) -> Vec<u8> {
        let words = [0x1234, flags, counts[0], counts[1], counts[2], counts[3]];
        [words.map(u16::to_be_bytes).concat(), rest.to_vec()].concat()
    }

    fn question(name: &str, kind: u16) -> Vec<u8> {
        [encode(name), kind.to_be_bytes().to_vec(), vec![0, 1]].concat()
    }

    fn asked(name: &str, kind: u16) -> Vec<u8> {
        message(RECURSION_DESIRED, [1, 0, 0, 0], &question(name, kind))
    }

    fn ask(names: &Names, message: &[u8]) -> Option<Vec<u8>> {
        // The table has times.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async { answer(message, false, names) })
    }

    /// Returns the code and the number of records of an answer.
    fn outcome(answer: &[u8]) -> (u16, u8) {
        (u16::from_be_bytes([answer[2], answer[3]]) & 0xf, answer[7])
    }

    #[test]
    fn a_name_gets_an_address_of_version_4_and_nothing_else() {
        let names = Names::default();
        let mut expected = message(0x8180, [1, 1, 0, 0], &question("Web.Example", A));
        expected.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 1, 0]);
        assert_eq!(ask(&names, &asked("Web.Example", A)), Some(expected));
        assert!(ask(&names, &asked("web.EXAMPLE", ANY)).unwrap().ends_with(&[198, 18, 1, 0]));
        for (kind, what) in
            [(28, "AAAA"), (65, "HTTPS"), (64, "SVCB"), (15, "MX"), (16, "TXT"), (PTR, "PTR"), (6, "SOA")]
        {
            assert_eq!(outcome(&ask(&names, &asked("web.example", kind)).unwrap()), (DONE, 0), "{what}");
        }
        for local in ["localhost", "LOCALHOST", "a.b.localhost"] {
            assert!(ask(&names, &asked(local, A)).unwrap().ends_with(&[127, 0, 0, 1]), "{local}");
        }
        assert!(ask(&names, &asked("notlocalhost", A)).unwrap().ends_with(&[198, 18, 1, 1]));
        let name = ask(&names, &asked("0.1.18.198.in-addr.arpa", PTR)).unwrap();
        assert!(name.ends_with(&encode("web.example")), "{name:?}");
        assert!(ask(&names, &asked("1.0.0.127.in-addr.arpa", PTR)).unwrap().ends_with(&encode("localhost")));
        for other in ["8.8.8.8.in-addr.arpa", "9.1.18.198.in-addr.arpa", "1.198.in-addr.arpa", "x.ip6.arpa"] {
            assert_eq!(outcome(&ask(&names, &asked(other, PTR)).unwrap()), (NO_SUCH_NAME, 0), "{other}");
        }
    }

    #[test]
    fn the_longest_names_are_answered_and_longer_ones_are_malformed() {
        let names = Names::default();
        let label = "a".repeat(63);
        let longest = [label.as_str(), &label, &label, &"b".repeat(61)].join(".");
        let answer = ask(&names, &asked(&longest, A)).unwrap();
        assert_eq!((longest.len(), outcome(&answer)), (253, (DONE, 1)));
        let back = ask(&names, &asked("0.1.18.198.in-addr.arpa", PTR)).unwrap();
        assert!(back.ends_with(&encode(&longest)) && back.len() <= 512, "{}", back.len());
        let longer = [label.as_str(), &label, &label, &"b".repeat(62)].join(".");
        assert_eq!(outcome(&ask(&names, &asked(&longer, A)).unwrap()), (MALFORMED, 0));
        assert_eq!(outcome(&ask(&names, &asked(&"a".repeat(64), A)).unwrap()), (MALFORMED, 0));
    }

    #[test]
    fn messages_that_are_no_question_get_the_code_that_says_so() {
        let names = Names::default();
        let one = question("a.example", A);
        let two = [one.clone(), one.clone()].concat();
        let loops = [&[0xc0, 12][..], &[0, 1, 0, 1]].concat();
        let later_loop = [&[1, b'a', 0xc0, 12][..], &[0, 1, 0, 1]].concat();
        let chaos = [encode("version.bind"), vec![0, 16, 0, 3]].concat();
        let cases = [
            ("no question", message(0, [0, 0, 0, 0], &[]), MALFORMED),
            ("two questions", message(0, [2, 0, 0, 0], &two), MALFORMED),
            ("a loop", message(0, [1, 0, 0, 0], &loops), MALFORMED),
            ("a loop after a label", message(0, [1, 0, 0, 0], &later_loop), MALFORMED),
            ("a name without an end", message(0, [1, 0, 0, 0], &[3, b'a', b'b']), MALFORMED),
            ("no type", message(0, [1, 0, 0, 0], &one[..one.len() - 3]), MALFORMED),
            ("an update", message(0x2800, [1, 0, 0, 0], &one), NOT_IMPLEMENTED),
            ("a transfer", asked("a.example", 252), NOT_IMPLEMENTED),
            ("another class", message(0, [1, 0, 0, 0], &chaos), NOT_IMPLEMENTED),
            ("a name that no host has", asked("a b.example", A), NO_SUCH_NAME),
            ("a name with a NUL", asked("a\0.example", A), NO_SUCH_NAME),
            ("the root", message(0, [1, 0, 0, 0], &[0, 0, 1, 0, 1]), DONE),
            (
                "with EDNS",
                message(0, [1, 0, 0, 1], &[one.clone(), vec![0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]].concat()),
                DONE,
            ),
        ];
        for (what, message, code) in cases {
            let answer = ask(&names, &message).unwrap();
            assert_eq!((outcome(&answer).0, &answer[..2]), (code, &[0x12, 0x34][..]), "{what}");
        }
        assert_eq!(ask(&names, &message(IS_ANSWER, [1, 0, 0, 0], &one)), None);
        for length in 0..HEAD_BYTES {
            assert_eq!(ask(&names, &asked("a.example", A)[..length]), None, "{length}");
        }
        let cut = answer(&asked("cut.example", A), true, &names).unwrap();
        assert_eq!(outcome(&cut), (MALFORMED, 0));
    }

    proptest! {
        #[test]
        fn any_bytes_get_an_answer_of_bounded_length_or_none(head in any::<[u8; 4]>(), bytes in vec(any::<u8>(), 0..600)) {
            let names = Names::default();
            for message in [bytes.clone(), [&head[..], &[0, 1, 0, 0, 0, 0, 0, 0], &bytes].concat()] {
                if let Some(answer) = ask(&names, &message) {
                    prop_assert!(answer.len() <= 512 && answer[..2] == message[..2] && answer[2] & 0x80 != 0);
                }
            }
        }

        #[test]
        fn a_name_is_found_again_by_its_address(labels in vec("[a-z0-9_-]{1,63}", 1..4)) {
            let (names, name) = (Names::default(), labels.join("."));
            let answer = ask(&names, &asked(&name, A)).unwrap();
            let address: [u8; 4] = *answer.last_chunk().unwrap();
            let found = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
                .block_on(async { names.name_of(address.into()) });
            if !name.ends_with("localhost") {
                prop_assert_eq!(found, Found::Name(name.into()));
            }
        }
    }
}
