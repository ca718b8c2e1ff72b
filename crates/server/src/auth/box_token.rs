//! Tokens that open one sandbox. Each is derived from the id of its sandbox, which it names: nothing of them is
//! stored or searched for, and they outlive a restart with the key.

use domain::{SandboxId, base32};
use subtle::ConstantTimeEq;

use super::preview::PreviewKey;

/// Bytes of the signature: 160 bits.
const SIGNATURE_BYTES: usize = 20;

/// Purpose of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Commands and files of the sandbox.
    Access,
    /// Traffic to its ports.
    Traffic,
}

/// Returns the token of a sandbox.
#[must_use]
pub fn token(key: &PreviewKey, purpose: Purpose, sandbox: &str) -> String {
    let word = match purpose {
        Purpose::Access => "access",
        Purpose::Traffic => "traffic",
    };
    let signature = key.mac(&format!("tidebox sandbox 1\0{word}\0{sandbox}"));
    format!("{sandbox}_{}", base32(&signature[..SIGNATURE_BYTES]))
}

/// Returns whether `tried` is the token of a sandbox.
#[must_use]
pub fn opens(key: &PreviewKey, purpose: Purpose, sandbox: &str, tried: &[u8]) -> bool {
    bool::from(token(key, purpose, sandbox).as_bytes().ct_eq(tried))
}

/// Returns the sandbox that a token names; whether the token is right is another question.
#[must_use]
pub fn named(token: &str) -> Option<&str> {
    let (sandbox, _) = token.split_once('_')?;
    SandboxId::parse(sandbox).ok().map(|_| sandbox)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::auth::preview::KEY_BYTES;

    const ID: &str = "sb-mzxw6ytbojtg633c";

    #[test]
    fn a_token_opens_its_own_sandbox_for_its_own_purpose_and_names_it() {
        let key = PreviewKey::new([7; KEY_BYTES]);
        let good = token(&key, Purpose::Access, ID);
        assert_eq!(named(&good), Some(ID));
        assert!(opens(&key, Purpose::Access, ID, good.as_bytes()));
        assert!(!opens(&key, Purpose::Traffic, ID, good.as_bytes()));
        assert!(!opens(&key, Purpose::Access, "sb-aaaaaaaaaaaaaaaa", good.as_bytes()));
        assert!(!opens(&PreviewKey::new([8; KEY_BYTES]), Purpose::Access, ID, good.as_bytes()));
        assert!(!opens(&key, Purpose::Access, ID, &good.as_bytes()[..good.len() - 1]));
        assert!(!opens(&key, Purpose::Access, ID, b""));
    }

    #[test]
    fn what_is_no_token_names_no_sandbox() {
        for text in ["", "_", "sb-_x", ID, "sb-MZXW6YTBOJTG633C_x", "e2b_0123"] {
            assert_eq!(named(text), None, "{text}");
        }
    }
}
