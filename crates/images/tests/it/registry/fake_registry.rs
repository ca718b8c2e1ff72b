//! A registry in memory whose answers a test can replace. All others are those of a correct
//! registry.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fixtures::image::{Image, digest};

/// A request that was received.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// Path with the query.
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn is_blob(&self) -> bool {
        self.path.contains("/blobs/")
    }

    /// Returns the offset at which the requested range begins.
    pub(crate) fn from(&self) -> usize {
        let range = self.header("range").strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
        range.map_or(0, |from| from.parse().unwrap())
    }
}

/// An answer to send.
pub(crate) enum Say {
    /// Status, header lines and body.
    Answer(u16, Vec<String>, Vec<u8>),
    /// The correct answer, broken off after this many bytes of its body.
    CutAfter(usize),
    /// An answer with the length of the correct one, of which this many wrong bytes are sent.
    Rubbish(usize),
    /// The correct answer with this body instead.
    Body(Vec<u8>),
    /// The correct answer, once the gate is open.
    When(Arc<Gate>),
    /// This many bytes of the correct answer's body; once the gate is open, the connection ends.
    StallAfter(usize, Arc<Gate>),
    /// The correct answer, one byte at a time with this pause after each.
    Drip(Duration),
    /// The head of an answer, and then the same bytes without end.
    Endless,
    /// No answer, until the client closes the connection.
    Nothing,
}

/// A gate that holds answers back until it is opened.
#[derive(Default)]
pub(crate) struct Gate {
    open: Mutex<bool>,
    opened: std::sync::Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let wait = self.opened.wait_timeout_while(self.open.lock().unwrap(), Duration::from_secs(120), |open| !*open);
        drop(wait.unwrap());
    }
}

type Tell = dyn Fn(&Asked) -> Option<Say> + Send + Sync;

pub(crate) struct FakeRegistry {
    address: String,
    shared: Arc<Shared>,
}

struct Shared {
    tell: Box<Tell>,
    /// Media type and content by path.
    documents: Mutex<HashMap<String, (String, Vec<u8>)>>,
    asked: Mutex<Vec<Asked>>,
    over: AtomicBool,
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

impl FakeRegistry {
    pub(crate) fn good() -> FakeRegistry {
        FakeRegistry::telling(|_| None)
    }

    pub(crate) fn telling(tell: impl Fn(&Asked) -> Option<Say> + Send + Sync + 'static) -> FakeRegistry {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            tell: Box::new(tell),
            documents: Mutex::default(),
            asked: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if serving.over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), shared) = (stream, Arc::clone(&serving)) else { continue };
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        FakeRegistry { address, shared }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Adds an image and returns its full name.
    pub(crate) fn put(&self, image: &Image, repository: &str, tag: &str) -> String {
        let mut blobs = image.blobs();
        let manifest = blobs.pop().unwrap();
        for blob in blobs {
            self.put_blob(repository, blob);
        }
        self.put_manifest(repository, tag, MANIFEST, manifest);
        format!("{}/{repository}:{tag}", self.address)
    }

    pub(crate) fn put_blob(&self, repository: &str, blob: Vec<u8>) {
        self.put_at(&format!("/v2/{repository}/blobs/{}", digest(&blob)), "application/octet-stream", blob);
    }

    pub(crate) fn put_manifest(&self, repository: &str, tag: &str, media_type: &str, manifest: Vec<u8>) {
        self.put_at(&format!("/v2/{repository}/manifests/{}", digest(&manifest)), media_type, manifest.clone());
        self.put_at(&format!("/v2/{repository}/manifests/{tag}"), media_type, manifest);
    }

    pub(crate) fn put_at(&self, path: &str, media_type: &str, content: Vec<u8>) {
        self.shared.documents.lock().unwrap().insert(path.to_owned(), (media_type.to_owned(), content));
    }

    /// Returns all requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }

    /// Returns the number of requests for blobs.
    pub(crate) fn blobs_asked(&self) -> usize {
        self.asked().iter().filter(|asked| asked.is_blob()).count()
    }
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) {
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        while let Some(asked) = read(&mut stream) {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            self.asked.lock().unwrap().push(asked.clone());
            let path = asked.path.split('?').next().unwrap();
            let good = self.documents.lock().unwrap().get(path).cloned();
            let said = (self.tell)(&asked);
            if let Some(Say::When(gate)) = &said {
                gate.pass();
            }
            let drip = if let Some(Say::Drip(pause)) = &said { Some(*pause) } else { None };
            let stall = if let Some(Say::StallAfter(_, gate)) = &said { Some(Arc::clone(gate)) } else { None };
            let (status, mut head, body, cut) = match (said, good) {
                (Some(Say::Answer(status, head, body)), _) => (status, head, body, None),
                (Some(Say::Nothing), _) => {
                    let _ = stream.read(&mut [0]);
                    return;
                }
                (Some(Say::Endless), _) => {
                    let mut go = stream.write_all(b"HTTP/1.1 200 X\r\n\r\n").is_ok();
                    while go {
                        go = stream.write_all(&[b' '; 64 * 1024]).is_ok();
                    }
                    return;
                }
                (_, None) => (404, Vec::new(), b"{}".to_vec(), None),
                (Some(Say::Body(wrong)), Some(_)) => (200, Vec::new(), wrong, None),
                (Some(Say::Rubbish(cut)), Some((_, body))) => (200, Vec::new(), vec![b'?'; body.len()], Some(cut)),
                (said, Some((media_type, body))) => {
                    let cut = match said {
                        Some(Say::CutAfter(cut) | Say::StallAfter(cut, _)) => Some(cut),
                        _ => None,
                    };
                    let from = asked.from();
                    let mut head = vec![format!("content-type: {media_type}")];
                    if from > 0 && from < body.len() {
                        head.push(format!("content-range: bytes {from}-{}/{}", body.len() - 1, body.len()));
                        (206, head, body[from..].to_vec(), cut)
                    } else {
                        (200, head, body, cut)
                    }
                }
            };
            head.push(format!("content-length: {}", body.len()));
            let head = format!("HTTP/1.1 {status} X\r\n{}\r\n\r\n", head.join("\r\n"));
            let sent = &body[..cut.unwrap_or(body.len()).min(body.len())];
            if let Some(pause) = drip {
                let mut go = stream.write_all(head.as_bytes()).is_ok();
                for byte in sent {
                    go = go && stream.write_all(&[*byte]).is_ok();
                    if !go || self.over.load(Ordering::SeqCst) {
                        return;
                    }
                    std::thread::sleep(pause);
                }
                continue;
            }
            let done = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(sent));
            if let Some(stall) = stall {
                stall.pass();
            }
            if done.is_err() || cut.is_some() {
                return;
            }
        }
    }
}

/// Reads the next request. Returns `None` when there is none.
fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 * 1024];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut lines = head.lines();
            let mut first = lines.next()?.split(' ').map(str::to_owned);
            let (method, path) = (first.next()?, first.next()?);
            let headers: BTreeMap<String, String> = lines
                .filter_map(|line| line.split_once(": "))
                .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
                .collect();
            let body = &bytes[end + 4..];
            let length = headers.get("content-length").map_or(Some(0), |length| length.parse().ok())?;
            if body.len() >= length {
                return Some(Asked { method, path, headers, body: body.to_vec() });
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}
