//! TLS on the TCP port: certificates from files, reloaded without closing a connection.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use providers::Chain;
use tokio::sync::watch;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, InconsistentKeys, ServerConfig};
use tokio_util::sync::CancellationToken;

/// Interval at which the files are read again.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Name of HTTP/2 in a handshake.
pub(super) const HTTP2: &[u8] = b"h2";
const CERT_KEY: &str = "server.tls.cert_file";
const KEY_KEY: &str = "server.tls.key_file";

/// Reason why the certificate or the key cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use `{key}` {path}: {reason}")]
pub struct TlsFault {
    key: &'static str,
    path: String,
    reason: String,
}

/// Certificate and key from files that may be replaced at any time. Clones share the current
/// configuration.
#[derive(Debug, Clone)]
pub struct Tls {
    files: Files,
    current: watch::Sender<Arc<ServerConfig>>,
    /// Contents loaded at the start.
    loaded: Contents,
}

#[derive(Debug, Clone)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

/// Contents of the files. Its `Debug` shows nothing: the key is a secret.
#[derive(Clone, PartialEq, Eq)]
struct Contents {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Contents")
    }
}

impl Tls {
    /// Reads the certificate chain and the key, both PEM.
    ///
    /// # Errors
    /// [`TlsFault`] if a file cannot be read or used, or the two do not belong together.
    pub fn load(cert_file: &Path, key_file: &Path) -> Result<Self, TlsFault> {
        let files = Files { cert: cert_file.to_owned(), key: key_file.to_owned() };
        let loaded = files.read()?;
        let config = files.config(&loaded)?;
        if std::fs::metadata(key_file).is_ok_and(|key| key.permissions().mode() & 0o004 != 0) {
            tracing::warn!(path = %key_file.display(), "every user of this machine can read the key; chmod it to 0600");
        }
        Ok(Self { files, current: watch::Sender::new(config), loaded })
    }

    /// Returns the configuration for new connections.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.borrow())
    }

    /// Reloads the files when their contents change, until `stop` is cancelled. Open
    /// connections are not touched. Contents that cannot be used are logged, and the old
    /// configuration stays.
    ///
    /// The contents are compared: modification times and inode numbers do not show reliably
    /// that a link was moved, and reading two small files costs nothing.
    pub(super) async fn reload(&self, stop: &CancellationToken) {
        let mut judged = self.loaded.clone();
        let mut seen = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let files = self.files.clone();
            // A read that hangs must not hold up the shutdown.
            let read = tokio::select! {
                () = stop.cancelled() => return,
                read = tokio::task::spawn_blocking(move || files.read()) => read,
            };
            let Ok(read) = read else { return };
            // The same contents twice: no process is in the middle of writing them.
            let is_settled = seen.as_ref().is_some_and(|seen| *seen == read.as_ref().ok().cloned());
            seen = Some(read.as_ref().ok().cloned());
            if !is_settled {
                continue;
            }
            let outcome = match read {
                Ok(read) if read == judged => continue,
                Ok(read) => {
                    let outcome = self.files.config(&read);
                    judged = read;
                    outcome
                }
                // Logged once: an unreadable file is treated like an empty one.
                Err(_) if judged.is_missing() => continue,
                Err(fault) => {
                    judged = Contents { cert: Vec::new(), key: Vec::new() };
                    Err(fault)
                }
            };
            match outcome {
                Ok(config) => {
                    self.current.send_replace(config);
                    tracing::info!(cert_file = %self.files.cert.display(), "using a new certificate");
                }
                Err(fault) => {
                    tracing::warn!(error = %Chain(&fault), "still using the old certificate");
                }
            }
        }
    }
}

impl Contents {
    fn is_missing(&self) -> bool {
        self.cert.is_empty() && self.key.is_empty()
    }
}

impl Files {
    fn read(&self) -> Result<Contents, TlsFault> {
        Ok(Contents { cert: read(CERT_KEY, &self.cert)?, key: read(KEY_KEY, &self.key)? })
    }

    fn config(&self, contents: &Contents) -> Result<Arc<ServerConfig>, TlsFault> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&contents.cert)
            .collect::<Result<_, _>>()
            .map_err(|error| self.bad_cert(format!("is not PEM: {error}")))?;
        if chain.is_empty() {
            return Err(self.bad_cert("holds no certificate (`-----BEGIN CERTIFICATE-----`)".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|error| {
            self.bad_key(if !matches!(error, PemError::NoItemsFound) {
                format!("is not PEM: {error}")
            } else if is_encrypted(&contents.key) {
                "is encrypted; write it without a password (`openssl pkey -in … -out …`)".to_owned()
            } else {
                "holds no private key (`-----BEGIN PRIVATE KEY-----`)".to_owned()
            })
        })?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.bad_cert(error.to_string()))?;
        let config = builder.with_no_client_auth().with_single_cert(chain, key);
        let mut config = config.map_err(|error| {
            if let rustls::Error::InvalidCertificate(_) = error {
                self.bad_cert(error.to_string())
            } else if let rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) = error {
                self.bad_key(format!("is not the key of the first certificate in {}", self.cert.display()))
            } else {
                self.bad_key(format!("{error}; RSA, ECDSA and Ed25519 keys can be used"))
            }
        })?;
        config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn bad_cert(&self, reason: String) -> TlsFault {
        fault(CERT_KEY, &self.cert, reason)
    }

    fn bad_key(&self, reason: String) -> TlsFault {
        fault(KEY_KEY, &self.key, reason)
    }
}

fn fault(key: &'static str, path: &Path, reason: String) -> TlsFault {
    TlsFault { key, path: path.display().to_string(), reason }
}

fn read(key: &'static str, path: &Path) -> Result<Vec<u8>, TlsFault> {
    let is_file = std::fs::metadata(path).map_err(|error| fault(key, path, error.to_string()))?.is_file();
    if !is_file {
        return Err(fault(key, path, "is not a file".to_owned()));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .map_err(|error| fault(key, path, error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(fault(key, path, format!("is larger than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

fn is_encrypted(key: &[u8]) -> bool {
    let text = String::from_utf8_lossy(key);
    text.contains("ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED")
}

#[cfg(test)]
mod test {
    use super::*;

    struct Pair {
        cert: String,
        key: String,
    }

    fn pair(name: &str) -> Pair {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        Pair { cert: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    fn load(dir: &Path, cert: &str, key: &str) -> Result<Tls, TlsFault> {
        let (cert_file, key_file) = (dir.join("cert.pem"), dir.join("key.pem"));
        std::fs::write(&cert_file, cert).unwrap();
        std::fs::write(&key_file, key).unwrap();
        Tls::load(&cert_file, &key_file)
    }

    #[test]
    fn files_that_cannot_be_used_name_their_key_and_what_would_be_right() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (pair("one.example"), pair("other.example"));
        let broken = one.cert.replace("-----END CERTIFICATE-----", "");
        let rubbish = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        for (cert, key, named, words) in [
            ("", one.key.as_str(), CERT_KEY, "holds no certificate"),
            (one.key.as_str(), one.key.as_str(), CERT_KEY, "holds no certificate"),
            (broken.as_str(), one.key.as_str(), CERT_KEY, "not PEM"),
            (rubbish, one.key.as_str(), CERT_KEY, ""),
            (one.cert.as_str(), "", KEY_KEY, "holds no private key"),
            (one.cert.as_str(), one.cert.as_str(), KEY_KEY, "holds no private key"),
            (one.cert.as_str(), encrypted, KEY_KEY, "without a password"),
            (one.cert.as_str(), other.key.as_str(), KEY_KEY, "is not the key of"),
        ] {
            let text = load(dir.path(), cert, key).unwrap_err().to_string();
            assert!(text.contains(named) && text.contains(words), "{named} {words}: {text}");
            assert!(!text.contains(one.key.lines().nth(1).unwrap()), "a key shows: {text}");
        }
        let text = Tls::load(&dir.path().join("none"), &dir.path().join("key.pem")).unwrap_err().to_string();
        assert!(text.contains(CERT_KEY) && text.contains("No such file"), "{text}");
        let text = Tls::load(&dir.path().join("cert.pem"), dir.path()).unwrap_err().to_string();
        assert!(text.contains(KEY_KEY) && text.contains("is not a file"), "{text}");
    }

    #[test]
    fn the_key_does_not_show() {
        let dir = tempfile::tempdir().unwrap();
        let made = pair("one.example");
        let tls = load(dir.path(), &made.cert, &made.key).unwrap();
        let shown = format!("{tls:?} {:?}", tls.loaded);
        assert!(shown.contains("Contents"), "{shown}");
        let bytes = format!("{:?}", made.key.lines().nth(1).unwrap().as_bytes());
        assert!(!shown.contains(made.key.lines().nth(1).unwrap()) && !shown.contains(&bytes), "{shown}");
    }

    #[tokio::test(start_paused = true)]
    async fn new_files_are_taken_up_and_bad_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (pair("one.example"), pair("other.example"));
        let tls = load(dir.path(), &one.cert, &one.key).unwrap();
        let first = Arc::clone(&tls.current.borrow());
        let stop = CancellationToken::new();
        let check = async {
            let mut changes = tls.current.subscribe();
            // With only one of two files new, and then with neither, the old configuration stays.
            std::fs::write(dir.path().join("cert.pem"), &other.cert).unwrap();
            tokio::time::sleep(LOOK_EVERY * 6).await;
            std::fs::remove_file(dir.path().join("cert.pem")).unwrap();
            tokio::time::sleep(LOOK_EVERY * 6).await;
            assert!(Arc::ptr_eq(&first, &tls.current.borrow()));
            std::fs::write(dir.path().join("cert.pem"), &other.cert).unwrap();
            std::fs::write(dir.path().join("key.pem"), &other.key).unwrap();
            changes.changed().await.unwrap();
            assert!(!Arc::ptr_eq(&first, &tls.current.borrow()));
            // Going back to the certificate of the start is a change as well.
            std::fs::write(dir.path().join("cert.pem"), &one.cert).unwrap();
            std::fs::write(dir.path().join("key.pem"), &one.key).unwrap();
            changes.changed().await.unwrap();
            stop.cancel();
        };
        tokio::join!(tls.reload(&stop), check);
    }
}
