//! Secrets that are kept in files of their own.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::{Config, Draft, Secret, read};

/// Function that stores a secret in the configuration.
type Put = Box<dyn FnOnce(&mut Config, Secret)>;

/// A secret that can be written inline or kept in a file.
struct Pair {
    /// The dotted key of the secret; its file's ends in `_file`.
    key: String,
    file: Option<PathBuf>,
    inline: bool,
    put: Put,
}

/// Reads every secret whose file is named. One that is given both ways is a fault: neither takes
/// precedence.
pub(super) fn resolve(draft: &mut Draft) {
    for pair in pairs(&draft.config) {
        let Some(path) = pair.file else { continue };
        let file_key = format!("{}_file", pair.key);
        let source = draft.source(&file_key);
        if pair.inline {
            let other = draft.source(&pair.key);
            let message = format!("is set, and so is `{}` ({other}); keep one of the two", pair.key);
            draft.fault(file_key, &source, message);
            continue;
        }
        match secret_in(&path) {
            Ok(secret) => (pair.put)(&mut draft.config, secret),
            Err(why) => draft.fault(file_key, &source, format!("`{}` {why}", path.display())),
        }
    }
}

fn pairs(config: &Config) -> Vec<Pair> {
    fn pair(
        key: &str,
        inline: &Option<Secret>,
        file: &Option<PathBuf>,
        put: impl FnOnce(&mut Config, Secret) + 'static,
    ) -> Pair {
        Pair { key: key.to_owned(), file: file.clone(), inline: inline.is_some(), put: Box::new(put) }
    }
    let (auth, custom) = (&config.auth, &config.providers.custom);
    let mut pairs = vec![
        pair("auth.api_key", &auth.api_key, &auth.api_key_file, |config, it| config.auth.api_key = Some(it)),
        pair("auth.admin_api_key", &auth.admin_api_key, &auth.admin_api_key_file, |config, it| {
            config.auth.admin_api_key = Some(it);
        }),
        pair("auth.worker_token", &auth.worker_token, &auth.worker_token_file, |config, it| {
            config.auth.worker_token = Some(it);
        }),
        pair("auth.worker_signing_key", &auth.worker_signing_key, &auth.worker_signing_key_file, |config, it| {
            config.auth.worker_signing_key = Some(it);
        }),
        pair("providers.custom.api_key", &custom.api_key, &custom.api_key_file, |config, it| {
            config.providers.custom.api_key = Some(it);
        }),
    ];
    for (id, worker) in &config.workers {
        let name = format!("workers.{id}.api_key");
        let id = id.clone();
        pairs.push(pair(&name, &worker.api_key, &worker.api_key_file, move |config, it| {
            config.workers.entry(id).or_default().api_key = Some(it);
        }));
    }
    for (host, registry) in &config.images.registries {
        let name = format!("images.registries.{host}.password");
        let host = host.clone();
        pairs.push(pair(&name, &registry.password, &registry.password_file, move |config, it| {
            config.images.registries.entry(host).or_default().password = Some(it);
        }));
    }
    pairs
}

/// Returns the secret in a file: all of its text but the line ending.
fn secret_in(path: &Path) -> Result<Secret, String> {
    let unreadable = |error: std::io::Error| format!("cannot be read: {error}");
    // A secret, the longest line ending, and one byte to see that there is more.
    let limit = read::SECRET_BYTES_MAX as u64 + 3;
    let file = File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err("is a folder; name the file that holds the secret".to_owned());
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
    let text = String::from_utf8(bytes).map_err(|_| "is not text; write the secret as printable ASCII".to_owned())?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err("is empty; write the secret into it".to_owned());
    }
    if text.len() > read::SECRET_BYTES_MAX {
        return Err(format!("holds more than the {} characters that a secret may have", read::SECRET_BYTES_MAX));
    }
    read::secret_text(text).map_err(|why| format!("holds no secret: it {why}"))
}
