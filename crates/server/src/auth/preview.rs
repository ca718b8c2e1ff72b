//! Permits for previews: signed texts that open one port of one sandbox until they expire. Nothing
//! of them is stored, and they outlive a restart with the key.

use std::fmt;

use domain::base32;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// Prefix of a token.
const FORM: &str = "tbp-";
/// Length of the time at which a permit expires: hexadecimal seconds since 1970.
const EXPIRY_CHARS: usize = 8;
/// Bytes of the signature: 128 bits, so that a permit fits into a label of a host name.
const SIGNATURE_BYTES: usize = 16;
/// Length of a permit.
pub const PERMIT_CHARS: usize = EXPIRY_CHARS + (SIGNATURE_BYTES * 8).div_ceil(5);
/// Length of the key, in bytes.
pub const KEY_BYTES: usize = 32;

/// Key that permits are signed with.
#[derive(Clone)]
pub struct PreviewKey([u8; KEY_BYTES]);

/// Form in which a permit is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// In a token, which is a secret.
    Token,
    /// In a host name, which is for everyone.
    HostName,
}

impl PreviewKey {
    /// Wraps the bytes of a key.
    #[must_use]
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Signs a permit for a port that is valid until `expires_s` (seconds since 1970-01-01 UTC).
    #[must_use]
    pub fn sign(&self, form: Form, sandbox: &str, port: u16, expires_s: u32) -> String {
        let form = match form {
            Form::Token => "token",
            Form::HostName => "host name",
        };
        let signed = format!("tidebox preview 1\0{form}\0{sandbox}\0{port}\0{expires_s}");
        let signature = self.mac(&signed);
        format!("{expires_s:0EXPIRY_CHARS$x}{}", base32(&signature[..SIGNATURE_BYTES]))
    }

    /// Returns the message authentication code of a text, whose beginning says what it is for.
    pub fn mac(&self, text: &str) -> [u8; 32] {
        let mac = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0).expect("a key of any length will do");
        mac.chain_update(text).finalize().into_bytes().into()
    }

    /// Returns whether `permit` was signed for this port and has not expired at `now_s`.
    #[must_use]
    pub fn admits(&self, form: Form, permit: &str, sandbox: &str, port: u16, now_s: i64) -> bool {
        let expiry = permit.get(..EXPIRY_CHARS).and_then(|text| u32::from_str_radix(text, 16).ok());
        let Some(expires_s) = expiry else { return false };
        let signed = self.sign(form, sandbox, port, expires_s);
        now_s < i64::from(expires_s) && bool::from(signed.as_bytes().ct_eq(permit.as_bytes()))
    }
}

impl fmt::Debug for PreviewKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// Returns the token that holds a permit.
#[must_use]
pub fn token(permit: &str) -> String {
    format!("{FORM}{permit}")
}

/// Returns the permit in a token; `None` for a text of another form, which is not ours.
#[must_use]
pub fn permit(token: &str) -> Option<&str> {
    let permit = token.strip_prefix(FORM)?;
    let is_ours = permit.len() == PERMIT_CHARS && permit.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_ours.then_some(permit)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_permit_opens_its_own_port_in_its_own_form_until_it_expires_and_nothing_else() {
        let key = PreviewKey::new([7; KEY_BYTES]);
        let good = key.sign(Form::Token, "sb-a", 3000, 1000);
        assert_eq!(good.len(), PERMIT_CHARS);
        let admits = |form, permit: &str, sandbox, port, now| key.admits(form, permit, sandbox, port, now);
        assert!(admits(Form::Token, &good, "sb-a", 3000, 999));
        assert!(!admits(Form::Token, &good, "sb-a", 3000, 1000), "expired");
        assert!(!admits(Form::HostName, &good, "sb-a", 3000, 0));
        assert!(!admits(Form::Token, &good, "sb-b", 3000, 0));
        assert!(!admits(Form::Token, &good, "sb-a", 300, 0));
        assert!(!PreviewKey::new([8; KEY_BYTES]).admits(Form::Token, &good, "sb-a", 3000, 0));
        for at in 0..good.len() {
            for other in ["0", "a", "z", "Z"] {
                let mut altered = good.clone();
                altered.replace_range(at..=at, other);
                assert!(altered == good || !admits(Form::Token, &altered, "sb-a", 3000, 0), "{altered}");
            }
        }
        for bad in ["", "ffffffff", &good[1..], &format!("{good}a"), &good.to_uppercase(), "+0000000\u{e9}"] {
            assert!(!admits(Form::Token, bad, "sb-a", 3000, 0), "{bad}");
        }
    }

    #[test]
    fn tokens_of_others_are_left_alone() {
        let ours = token(&PreviewKey::new([7; KEY_BYTES]).sign(Form::Token, "sb-a", 1, 1));
        assert!(permit(&ours).is_some());
        for other in ["", "tbp-", "abc", &ours[4..], &ours[..ours.len() - 1], &format!("{ours}=")] {
            assert!(permit(other).is_none(), "{other}");
        }
    }
}
