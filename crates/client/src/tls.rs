//! Certificates of servers: which are trusted where a file names the authorities.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};

use crate::{Error, Result};

/// Largest CA file, in bytes: a bundle of every public authority is 250 KiB.
const CA_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Returns a configuration that trusts the certificates in a PEM file and no others.
pub(crate) fn trusting(path: &Path) -> Result<ClientConfig> {
    let given = certificates(path).map_err(|reason| invalid_ca(path, &reason))?;
    let mut roots = RootCertStore::empty();
    for certificate in &given {
        roots
            .add(certificate.clone())
            .map_err(|error| invalid_ca(path, &format!("has a certificate that cannot be used: {error}")))?;
    }
    let authorities = WebPkiServerVerifier::builder(Arc::new(roots))
        .build()
        .map_err(|error| invalid_ca(path, &format!("cannot be used: {error}")))?;
    let verifier = Arc::new(GivenCertificates { given, authorities });
    let mut config =
        ClientConfig::builder().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn invalid_ca(path: &Path, fault: &str) -> Error {
    Error::Argument { name: "the CA file", reason: format!("`{}` {fault}", path.display()) }
}

/// Returns the certificates in a PEM file; at least one.
fn certificates(path: &Path) -> std::result::Result<Vec<CertificateDer<'static>>, String> {
    let mut pem = Vec::new();
    let read = File::open(path).and_then(|file| file.take(CA_BYTES_MAX + 1).read_to_end(&mut pem));
    read.map_err(|error| format!("cannot be read: {error}"))?;
    if pem.len() as u64 > CA_BYTES_MAX {
        return Err(format!("is larger than {CA_BYTES_MAX} bytes; name a file of PEM certificates"));
    }
    let given: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let given = given.map_err(|error| format!("does not contain PEM certificates: {error}"))?;
    if given.is_empty() {
        return Err("contains no certificate; it must have a `-----BEGIN CERTIFICATE-----` line".to_owned());
    }
    Ok(given)
}

/// Verifier that takes a server's certificate if one of the given ones has signed it, or if it is one of them.
///
/// `openssl req -x509` marks the certificate that it makes as that of an authority. Such a certificate is
/// refused for a server, although a caller who names it as trusted means just that.
#[derive(Debug)]
struct GivenCertificates {
    given: Vec<CertificateDer<'static>>,
    authorities: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for GivenCertificates {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        let verified = self.authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The time of its validity is checked before its kind.
            Err(error) if is_kind_alone(&error) && self.given.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        self.authorities.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        self.authorities.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Returns whether a certificate was refused only because it is that of an authority.
fn is_kind_alone(error: &TlsError) -> bool {
    let TlsError::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}
