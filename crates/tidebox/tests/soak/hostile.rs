//! Boxes and callers that take all they can get.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::server::TestServer;

/// Time of one command in a hostile box.
const ROUND: &str = "10s";
/// Programs for the boxes, by the resource that each tries to take from the others.
const PROGRAMS: [(&str, &str); 8] = [
    ("processors", "import os\nfor _ in range(40):\n  if os.fork() == 0:\n    while True: pass\nos.wait()"),
    ("processes", "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"),
    ("memory", "a=[]\nwhile True: a.append(bytearray(1<<20))"),
    (
        "disk",
        "import os\nwhile True:\n  try:\n    with open('/workspace/f','wb',0) as f:\n      while True: f.write(bytes(1<<20))\n  except OSError: os.unlink('/workspace/f')",
    ),
    (
        "inodes",
        "import os,shutil\nwhile True:\n  os.makedirs('/workspace/d',exist_ok=True)\n  try:\n    for n in range(10**6): os.mknod(f'/workspace/d/{n}')\n  except OSError: pass\n  shutil.rmtree('/workspace/d',ignore_errors=True)",
    ),
    (
        "counters of the kernel",
        "import ctypes,os,time\nc=ctypes.CDLL(None)\nfor _ in range(5000): c.inotify_init()\nfor n in range(5000): c.mq_open(b'/q%d'%n,0o102,0o600,None)\nt=ctypes.c_void_p()\nfor _ in range(200000): c.timer_create(1,None,ctypes.byref(t))\nfor _ in range(5000): c.posix_openpt(2)\ntime.sleep(60)",
    ),
    (
        "socket buffers",
        "import socket,time\ns=socket.socket();s.bind(('127.0.0.1',0));s.listen(4096)\nk=[]\nwhile True:\n  try:\n    a=socket.create_connection(s.getsockname());b,_=s.accept();k+=[a,b]\n    for x in (a,b):\n      x.setblocking(False)\n      try:\n        while True: x.send(bytes(1<<20))\n      except BlockingIOError: pass\n  except OSError: time.sleep(0.1)",
    ),
    (
        "names",
        "import os\nos.makedirs('/workspace/long',exist_ok=True)\ntry:\n  for n in range(40000): os.mknod('/workspace/long/'+('n'*200)+str(n))\nexcept OSError: pass",
    ),
];

/// Hostile boxes and callers at work.
pub struct Attack {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
    deeds: Vec<(&'static str, Arc<AtomicU64>)>,
    http: reqwest::Client,
    url: String,
}

impl Attack {
    /// Starts one attacker for each program, and further callers up to `count`.
    pub async fn begin(server: &TestServer, count: usize) -> Attack {
        let http = crate::server::http_client().timeout(Duration::from_secs(30)).build().unwrap();
        let (stop, url) = (Arc::new(AtomicBool::new(false)), server.url.clone());
        let mut attack = Attack { stop, tasks: JoinSet::new(), deeds: Vec::new(), http, url };
        for (name, program) in PROGRAMS {
            let caller = attack.caller(name);
            attack.tasks.spawn(caller.run_program(program));
        }
        let caller = attack.caller("answers that are not read");
        attack.tasks.spawn(caller.read_nothing());
        let caller = attack.caller("bodies half sent and rows");
        attack.tasks.spawn(caller.send_halves());
        assert_eq!(attack.deeds.len(), count, "one attacker for each honest caller");
        attack
    }

    fn caller(&mut self, name: &'static str) -> Hostile {
        let deeds = Arc::new(AtomicU64::new(0));
        self.deeds.push((name, Arc::clone(&deeds)));
        let owner = format!("hostile-{}", self.deeds.len());
        Hostile { http: self.http.clone(), url: self.url.clone(), owner, stop: Arc::clone(&self.stop), deeds }
    }

    /// Ends all attackers and returns the number of rounds of each.
    pub async fn end(mut self) -> Vec<(&'static str, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        self.tasks.shutdown().await;
        self.deeds.into_iter().map(|(name, deeds)| (name, deeds.load(Ordering::Relaxed))).collect()
    }
}

struct Hostile {
    http: reqwest::Client,
    url: String,
    owner: String,
    stop: Arc<AtomicBool>,
    deeds: Arc<AtomicU64>,
}

impl Hostile {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Counts a round. A short pause keeps a refused attacker from being a load by
    /// its requests alone; rate limits are for that.
    async fn round(&self) {
        self.deeds.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    /// Sends a request and returns its body, if it is JSON.
    async fn post(&self, path: &str, body: &Value) -> Option<Value> {
        let request = self.http.post(format!("{}/api/v1{path}", self.url)).header("X-User-ID", &self.owner);
        request.json(body).send().await.ok()?.json().await.ok()
    }

    async fn a_box(&self) -> Option<String> {
        let size = json!({"memory_mb": 64, "vcpus": 1, "disk_mb": 128, "ttl": "2h"});
        Some(self.post("/sandboxes", &size).await?["id"].as_str()?.to_owned())
    }

    /// Runs a program repeatedly, each time in a new box, and lists the files that it left.
    async fn run_program(self, program: &'static str) {
        while self.goes_on() {
            if let Some(id) = self.a_box().await {
                let exec = json!({"command": "python3", "args": ["-c", program], "mode": "argv", "timeout": ROUND});
                self.post(&format!("/sandboxes/{id}/exec"), &exec).await;
                let list = format!("{}/api/v1/sandboxes/{id}/files/list?path=/workspace/long", self.url);
                let lists = (0..8).map(|_| async { self.http.get(&list).send().await.ok()?.bytes().await.ok() });
                futures_util::future::join_all(lists).await;
                let _ = self.http.delete(format!("{}/api/v1/sandboxes/{id}", self.url)).send().await;
            }
            self.round().await;
        }
    }

    /// Requests large answers on many connections, and reads none of them.
    async fn read_nothing(self) {
        while self.goes_on() {
            if let Some(id) = self.a_box().await {
                let mut held = Vec::new();
                for number in 0..60 {
                    let is_stream = number % 2 == 0;
                    let body = json!({"command": "head -c 30000000 /dev/zero", "stream": is_stream}).to_string();
                    held.extend(self.unread(&format!("/sandboxes/{id}/exec"), &body, body.len()).await);
                }
                tokio::time::sleep(Duration::from_secs(5)).await;
                drop(held);
                let _ = self.http.delete(format!("{}/api/v1/sandboxes/{id}", self.url)).send().await;
            }
            self.round().await;
        }
    }

    /// Sends bodies that never end, and spawns that cannot succeed.
    async fn send_halves(self) {
        let labels: serde_json::Map<String, Value> =
            (0..60).map(|n| (format!("label-{n}"), Value::String("x".repeat(4000)))).collect();
        let failing = json!({"image": "no/such:image", "metadata": labels});
        let half = format!("{{\"metadata\": {{\"a\": \"{}", "y".repeat(1_000_000));
        while self.goes_on() {
            let mut held = Vec::new();
            for _ in 0..100 {
                held.extend(self.unread("/sandboxes", &half, 1_040_000).await);
                self.post("/sandboxes", &failing).await;
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
            drop(held);
            self.round().await;
        }
    }

    /// Sends `body`, announced as `length` bytes, and returns the connection, from which nothing is
    /// read.
    async fn unread(&self, path: &str, body: &str, length: usize) -> Option<TcpStream> {
        let address = self.url.strip_prefix("http://")?;
        let head = format!(
            "POST /api/v1{path} HTTP/1.1\r\nHost: {address}\r\nX-User-ID: {}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n",
            self.owner
        );
        let send = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(body.as_bytes()).await?;
            Ok::<_, std::io::Error>(stream)
        };
        tokio::time::timeout(Duration::from_secs(1), send).await.ok()?.ok()
    }
}
