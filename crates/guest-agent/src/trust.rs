//! The authority whose certificates programs of the box trust besides those of their system.
//!
//! Programs find it by variables, since each library of TLS has its own place for authorities; those
//! that read the system's file of them find it there.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::failure::{Result, internal};

/// Folders for our files; of the second, also where the box has no root.
const FOLDERS: [&str; 2] = ["/run/tidebox", "/tmp/.tidebox"];
/// Files with the authorities of a system: of Debian and Alpine, of Fedora, of SUSE, of others.
const SYSTEM_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Largest file of authorities that is read, in bytes.
const SYSTEM_FILE_BYTES_MAX: u64 = 8 << 20;
/// Variables with a file of all authorities: of OpenSSL and what is built on it, of requests, of curl,
/// of git, of pip, of Cargo, of the AWS command line.
const ALL_VARIABLES: [&str; 7] = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
];
/// Variables with a file of authorities besides the program's own: of Node.js and of Deno.
const FURTHER_VARIABLES: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Authority of the box, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Trust {
    installed: RefCell<Option<Installed>>,
    /// Certificate that was added to the file of the system.
    added: RefCell<Option<String>>,
}

#[derive(Debug)]
struct Installed {
    certificate: String,
    variables: Vec<(&'static str, String)>,
}

impl Trust {
    /// Returns the variables by which programs find the authority.
    pub(crate) fn variables(&self) -> Vec<(&'static str, String)> {
        self.installed.borrow().as_ref().map(|installed| installed.variables.clone()).unwrap_or_default()
    }

    /// Has commands that start from now on trust the authority with this certificate. `is_own_root`
    /// says that the file of the system is the box's own.
    ///
    /// # Errors
    /// Internal if no folder of the box can hold the files.
    pub(crate) fn install(&self, certificate: &str, is_own_root: bool) -> Result<()> {
        if self.installed.borrow().as_ref().is_some_and(|installed| installed.certificate == certificate) {
            return Ok(());
        }
        let system = SYSTEM_FILES.into_iter().find_map(|path| Some((path, read(path).ok()?)));
        let all = match &system {
            Some((_, text)) => format!("{text}{}{certificate}", line_break(text)),
            None => certificate.to_owned(),
        };
        let mut outcome = Err(io::Error::from(io::ErrorKind::NotFound));
        for folder in FOLDERS {
            outcome = write_files(Path::new(folder), certificate, &all).map(|()| folder);
            if outcome.is_ok() {
                break;
            }
        }
        let folder = outcome
            .map_err(|error| internal(format!("cannot store the certificate authority in the sandbox: {error}")))?;
        if let Some((path, _)) = system.filter(|_| is_own_root) {
            let mut added = self.added.borrow_mut();
            // Not where it is read-only: the variables are there.
            if append(path, certificate, added.as_deref()).is_ok_and(|is_new| is_new) {
                *added = Some(certificate.to_owned());
            }
        }
        let of_all = ALL_VARIABLES.into_iter().map(|name| (name, format!("{folder}/all.pem")));
        let of_authority = FURTHER_VARIABLES.into_iter().map(|name| (name, format!("{folder}/authority.pem")));
        let variables = of_all.chain(of_authority).collect();
        *self.installed.borrow_mut() = Some(Installed { certificate: certificate.to_owned(), variables });
        Ok(())
    }
}

fn read(path: &str) -> io::Result<String> {
    // Its metadata says more than an open would: a FIFO in its place would be waited for.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > SYSTEM_FILE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    fs::read_to_string(path)
}

/// Returns what has to stand between a text and a certificate behind it.
fn line_break(text: &str) -> &'static str {
    if text.is_empty() || text.ends_with('\n') { "" } else { "\n" }
}

fn write_files(folder: &Path, certificate: &str, all: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // Whatever the umask is.
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for (name, content) in [("authority.pem", certificate), ("all.pem", all)] {
        let path = folder.join(name);
        let new = folder.join(format!(".{name}"));
        let _ = fs::remove_file(&new);
        // Not through a link that a process has put there.
        let mut file = File::options().write(true).create_new(true).mode(0o644).open(&new)?;
        file.write_all(content.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        fs::rename(&new, &path)?;
    }
    Ok(())
}

/// Adds the certificate to the file of the system, unless it has one of the same authority: each time
/// that a server sends it, it is another one, with the same name and key. Returns whether it was added.
fn append(path: &str, certificate: &str, added: Option<&str>) -> io::Result<bool> {
    let text = read(path)?;
    if text.contains(certificate) || added.is_some_and(|added| text.contains(added)) {
        return Ok(false);
    }
    // Written in place, since the path may be a link to where other programs look too.
    let more = format!("{}{certificate}", line_break(&text));
    File::options().append(true).open(path)?.write_all(more.as_bytes())?;
    Ok(true)
}
