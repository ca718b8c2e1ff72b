//! The authority of one box: it signs the certificates that the server shows in the place of hosts
//! that secrets are bound to, and nothing but that box trusts it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use domain::{Host, SandboxId, Timestamp};
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use secrecy::zeroize::Zeroizing;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

/// Most hosts whose certificates are kept; a wildcard may have any number.
const KEPT_MAX: usize = 64;

/// Mean length of a year.
const SECONDS_PER_YEAR: i64 = 31_556_952;

/// Reason why an authority or a certificate cannot be made.
pub type CertificateError = Box<dyn std::error::Error + Send + Sync>;

/// Authority that one box trusts.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
    configs: Mutex<HashMap<Host, Arc<ServerConfig>>>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    /// Makes the key of a new authority, as PKCS #8 in DER.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn new_key() -> Result<Zeroizing<Vec<u8>>, CertificateError> {
        Ok(Zeroizing::new(KeyPair::generate()?.serialize_der()))
    }

    /// Opens the authority of a box by its key. Its certificate is made anew each time; a box takes one
    /// for the other, since the name and the key are the same.
    ///
    /// # Errors
    /// If it is not a key.
    pub fn open(id: &SandboxId, key: &[u8], now: Timestamp) -> Result<Authority, CertificateError> {
        let key = KeyPair::try_from(key)?;
        let mut params = params(now, Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, format!("Tidebox sandbox {id}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority { issuer: Issuer::new(params, key), certificate, configs: Mutex::default() })
    }

    /// Returns its certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Returns the settings of a TLS server that shows a certificate of this host. It speaks HTTP/1.1.
    ///
    /// # Errors
    /// If the host cannot be in a certificate.
    pub fn server(&self, host: &Host, now: Timestamp) -> Result<Arc<ServerConfig>, CertificateError> {
        if let Some(config) = self.configs.lock().get(host) {
            return Ok(Arc::clone(config));
        }
        let key = KeyPair::generate()?;
        let mut params = params(now, vec![host.to_string()])?;
        params.distinguished_name.push(DnType::CommonName, "Tidebox");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let config = Arc::new(config);
        let mut configs = self.configs.lock();
        if configs.len() >= KEPT_MAX {
            configs.clear();
        }
        configs.insert(host.clone(), Arc::clone(&config));
        Ok(config)
    }
}

/// Returns the parameters of a certificate that is valid from the year before to the second after.
fn params(now: Timestamp, names: Vec<String>) -> Result<CertificateParams, CertificateError> {
    let year = i32::try_from(1970 + now.as_second() / SECONDS_PER_YEAR)?;
    let mut params = CertificateParams::new(names)?;
    params.not_before = date_time_ymd(year - 1, 1, 1);
    params.not_after = date_time_ymd(year + 2, 1, 1);
    // The default names the library.
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params)
}
