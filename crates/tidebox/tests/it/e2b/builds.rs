//! Builds of templates.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::{E2b, Sandbox, answer, refused};
use crate::server::NATIVE;

/// Digest of files, which a client computes.
const DIGEST: &str = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";
const ADMIN: &str = "admin-key-0123456789abcdef0123456789abcdef";
/// Most looks at a build that goes on.
const LOOKS_MAX: u32 = 600;

/// Returns a tar, compressed or not, of files and symbolic links (`name -> target`).
fn archive(files: &[(&str, &str)], gzip: bool) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        if let Some((name, target)) = name.split_once(" -> ") {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            tar.append_link(&mut header, name, target).unwrap();
        } else {
            header.set_size(content.len() as u64);
            tar.append_data(&mut header, name, content.as_bytes()).unwrap();
        }
    }
    let tar = tar.into_inner().unwrap();
    if !gzip {
        return tar;
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, &tar).unwrap();
    encoder.finish().unwrap()
}

fn step(kind: &str, args: &[&str]) -> Value {
    json!({"type": kind, "args": args, "force": false})
}

fn copy(args: &[&str]) -> Value {
    json!({"type": "COPY", "args": args, "filesHash": DIGEST, "force": false})
}

/// A build that was asked for.
struct Begun {
    template: String,
    id: String,
}

impl E2b {
    async fn native() -> Self {
        Self::start(NATIVE).await
    }

    /// Asks for a build.
    async fn new_build(&self, body: Value) -> Begun {
        let asked = self.post("/v3/templates", body).await;
        assert_eq!(asked.status, 202, "{}", asked.json());
        let text = |name: &str| asked.json()[name].as_str().unwrap().to_owned();
        Begun { template: text("templateID"), id: text("buildID") }
    }

    async fn start_build(&self, begun: &Begun, body: Value) {
        let path = format!("/v2/templates/{}/builds/{}", begun.template, begun.id);
        let started = self.post(&path, body).await;
        assert_eq!(started.status, 202, "{:?}", String::from_utf8_lossy(&started.bytes));
    }

    /// Waits for the end of a build, and returns its status with all log entries.
    async fn ended(&self, begun: &Begun) -> Value {
        let path = format!("/templates/{}/builds/{}/status", begun.template, begun.id);
        for _ in 0..LOOKS_MAX {
            let status = self.get(&path).await.ok();
            if !matches!(status["status"].as_str(), Some("waiting" | "building")) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the build does not end: {}", self.get(&path).await.ok());
    }

    /// Builds a template, and returns its last status.
    async fn build(&self, name: &str, steps: Value) -> Value {
        self.build_as(json!({"name": name}), json!({"fromTemplate": "base", "steps": steps})).await
    }

    async fn build_as(&self, asked: Value, recipe: Value) -> Value {
        let begun = self.new_build(asked).await;
        self.start_build(&begun, recipe).await;
        self.ended(&begun).await
    }

    /// Builds a template, which must succeed.
    async fn built(&self, name: &str, steps: Value) {
        let status = self.build(name, steps).await;
        assert_eq!(status["status"], "ready", "{status}");
    }

    async fn upload(&self, files: &[u8]) {
        let link = self.get(&format!("/templates/any/files/{DIGEST}")).await;
        assert_eq!(link.status, 201, "{}", link.json());
        let put = self.http.put(link.json()["url"].as_str().unwrap()).body(files.to_vec());
        let put = answer(put).await;
        assert_eq!(put.status, 200, "{:?}", String::from_utf8_lossy(&put.bytes));
    }

    /// Returns the output of a command as the API runs it, with the defaults of the sandbox.
    async fn output(&self, sandbox: &Sandbox, line: &str) -> String {
        self.server.output(&sandbox.id, line).await
    }

    async fn of_template(&self, name: &str) -> Sandbox {
        self.create(json!({"templateID": name})).await
    }

    /// Returns the kinds of the snapshots that are there.
    async fn snapshots(&self) -> Vec<String> {
        let listed = self.server.get("/snapshots").await.ok();
        listed.as_array().unwrap().iter().map(|row| row["kind"].as_str().unwrap().to_owned()).collect()
    }
}

#[tokio::test]
async fn a_template_has_what_its_steps_made() {
    let e2b = E2b::native().await;
    let steps = json!([
        step("ENV", &["A", "1", "B", "$A-two \"q\" `x` $(y) \\", "PATH", "$PATH:/opt/bin"]),
        step("RUN", &["echo $A > ~/of-user; whoami >> ~/of-user; pwd >> ~/of-user"]),
        step("RUN", &["mkdir /opt/bin; whoami > /opt/of-root", "root"]),
        step("WORKDIR", &["/srv/app"]),
        step("RUN", &["pwd > here"]),
        step("WORKDIR", &["deeper"]),
        step("USER", &["ann"]),
        step("RUN", &["whoami > ~/mine; pwd >> ~/mine"]),
    ]);
    let asked = json!({"name": "app", "cpuCount": 1, "memoryMB": 256});
    let status = e2b.build_as(asked, json!({"fromTemplate": "base", "steps": steps})).await;
    assert_eq!(status["status"], "ready", "{status}");
    let levels: Vec<_> = status["logEntries"].as_array().unwrap().iter().map(|entry| &entry["level"]).collect();
    assert!(levels.iter().all(|level| ["debug", "info"].contains(&level.as_str().unwrap())), "{status}");
    let sandbox = e2b.of_template("app").await;
    let files = "cat /home/user/of-user /opt/of-root /srv/app/here /home/ann/mine";
    assert_eq!(e2b.output(&sandbox, files).await, "1\nuser\n/home/user\nroot\n/srv/app\nann\n/srv/app/deeper\n");
    // Commands that name nothing have the user, the directory and the environment of the template.
    assert_eq!(e2b.output(&sandbox, "whoami; pwd; echo $A").await, "ann\n/srv/app/deeper\n1\n");
    assert_eq!(e2b.output(&sandbox, "printf %s \"$B\"").await, "1-two \"q\" `x` $(y) \\");
    assert!(e2b.output(&sandbox, "echo $PATH").await.ends_with(":/opt/bin\n"));
    let detail = e2b.get(&format!("/sandboxes/{}", sandbox.id)).await.ok();
    assert_eq!((&detail["memoryMB"], &detail["templateID"]), (&json!(256), &json!("app")));
    assert_eq!(e2b.get("/templates/aliases/app").await.ok()["templateID"], "app");
    assert_eq!(e2b.get("/v2/sandboxes").await.ok().as_array().unwrap().len(), 1, "the box of the build is gone");
}

#[tokio::test]
async fn files_are_uploaded_once_and_copied_where_a_step_says() {
    let e2b = E2b::native().await;
    assert_eq!(e2b.get(&format!("/templates/any/files/{DIGEST}")).await.json()["present"], false);
    let files = [("a.txt", "a"), ("dir/b.txt", "b"), ("dir/deep/c.txt", "c"), ("dir/link -> b.txt", "")];
    for gzip in [true, false] {
        e2b.upload(&archive(&files, gzip)).await;
        assert_eq!(e2b.get(&format!("/templates/any/files/{DIGEST}")).await.json()["present"], true);
        let steps = json!([
            step("WORKDIR", &["/srv/files"]),
            copy(&["a.txt", "renamed.txt", "", ""]),
            copy(&["a.txt", "/srv/files/into/", "", ""]),
            copy(&["a.txt", "/srv/files/roots.txt", "root", "0600"]),
            step("RUN", &["mkdir -p merged/deep; touch merged/deep/old"]),
            copy(&["dir", "merged", "", ""]),
            copy(&["dir/*", "globbed", "", ""]),
        ]);
        e2b.built("files", steps).await;
        let sandbox = e2b.of_template("files").await;
        let listed = e2b.output(&sandbox, "find . -printf '%P %u %m %l\\n' | sort").await;
        let expected = "\u{20}user 755 
globbed user 755 
globbed/b.txt user 644 
globbed/deep user 755 
globbed/deep/c.txt user 644 
globbed/link user 777 b.txt
into root 755 
into/a.txt user 644 
merged user 755 
merged/b.txt user 644 
merged/deep user 755 
merged/deep/c.txt user 644 
merged/deep/old user 644 
merged/link user 777 b.txt
renamed.txt user 644 
roots.txt root 600 
";
        assert_eq!(listed, expected);
        assert_eq!(e2b.output(&sandbox, "ls -A /tmp").await, "", "nothing is left of the archive");
    }
}

#[tokio::test]
async fn a_link_opens_its_own_upload_and_nothing_else() {
    let e2b = E2b::native().await;
    let link = e2b.get(&format!("/templates/any/files/{DIGEST}")).await.json()["url"].as_str().unwrap().to_owned();
    let other = DIGEST.replace('5', "6");
    let put = async |url: String| answer(e2b.http.put(url).body("x")).await;
    for url in [
        link.replace(DIGEST, &other),
        link.replace("expires=", "expires=9"),
        link.replace("owner=", "owner=eve"),
        link.split('?').next().unwrap().to_owned(),
    ] {
        refused(&put(url).await, 401, "link");
    }
    let get = answer(e2b.http.get(&link)).await;
    refused(&get, 401, "key");
    refused(&e2b.get("/templates/any/files/odd").await, 400, "64 hexadecimal digits");
    let steps = json!([copy(&["a", "/a", "", ""])]);
    let begun = e2b.new_build(json!({"name": "x"})).await;
    let path = format!("/v2/templates/{}/builds/{}", begun.template, begun.id);
    refused(&e2b.post(&path, json!({"fromTemplate": "base", "steps": steps})).await, 400, "upload");
}

#[tokio::test]
async fn a_step_that_fails_ends_the_build_and_leaves_nothing() {
    let e2b = E2b::native().await;
    e2b.upload(&archive(&[("a", "a")], true)).await;
    for (steps, step_number, words) in [
        (json!([step("RUN", &["true"]), step("RUN", &["echo why >&2; exit 7"])]), "2", "exit status 7"),
        (json!([step("RUN", &["true", "nobody-here"])]), "1", "invalid username: 'nobody-here'"),
        (json!([copy(&["b", "/b", "", ""])]), "1", "`b`"),
        (json!([copy(&["../a", "/b", "", ""])]), "1", "../a"),
        (json!([copy(&["a", "/b", "nobody-here", ""])]), "1", "nobody-here"),
        (json!([step("WORKDIR", &["/etc/passwd/x"])]), "1", "/etc/passwd"),
        (json!([step("ENV", &["A", &"x".repeat(40_000), "B", "$A"])]), "1", "65536"),
    ] {
        let status = e2b.build("broken", steps).await;
        assert_eq!((&status["status"], &status["reason"]["step"]), (&json!("error"), &json!(step_number)), "{status}");
        let message = status["reason"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message} lacks {words}");
        let last = status["logEntries"].as_array().unwrap().last().unwrap().clone();
        assert_eq!((last["level"].as_str(), last["message"].as_str()), (Some("error"), Some(message)));
    }
    let status = e2b.build_as(json!({"name": "broken"}), json!({"fromImage": "not/there:1"})).await;
    assert_eq!((&status["status"], &status["reason"]["step"]), (&json!("error"), &json!("base")), "{status}");
    refused(&e2b.get("/templates/aliases/broken").await, 404, "broken");
    assert_eq!(e2b.snapshots().await, Vec::<String>::new());
    assert_eq!(e2b.get("/v2/sandboxes").await.ok(), json!([]));
}

#[tokio::test]
async fn a_start_command_runs_in_each_sandbox_and_is_ready_when_the_sandbox_is() {
    let e2b = E2b::native().await;
    let recipe = |ready: &str| {
        json!({
            "fromTemplate": "base",
            "steps": [step("ENV", &["PLACE", "/tmp/started"]), step("WORKDIR", &["/srv"])],
            "startCmd": "sleep 0.3; echo $PLACE $(whoami) $(pwd) > $PLACE; exec sleep 1000",
            "readyCmd": ready,
        })
    };
    let status = e2b.build_as(json!({"name": "service"}), recipe("test -s $PLACE")).await;
    assert_eq!(status["status"], "ready", "{status}");
    // What is built from it starts the same.
    let child = json!({"fromTemplate": "service", "steps": [step("RUN", &["test ! -e $PLACE; touch ~/child"])]});
    let status = e2b.build_as(json!({"name": "child"}), child).await;
    assert_eq!(status["status"], "ready", "{status}");
    for template in ["service", "child"] {
        let sandbox = e2b.of_template(template).await;
        assert_eq!(
            e2b.output(&sandbox, "cat $PLACE; pgrep -c sleep").await,
            "/tmp/started user /srv\n1\n",
            "{template}"
        );
    }
    let mut hopeless = recipe("false");
    hopeless["startCmd"] = json!("exit 1");
    hopeless["readyCmd"] = json!("exit 1");
    let begun = e2b.new_build(json!({"name": "hopeless"})).await;
    e2b.start_build(&begun, hopeless).await;
    // It waits for five minutes, in which its box can be seen and removed.
    let mut boxes = Value::Null;
    e2b.server
        .until("the start command", async || {
            let path = format!("/templates/hopeless/builds/{}/status", begun.id);
            let log = e2b.get(&path).await.ok()["logEntries"].to_string();
            boxes = e2b.get("/v2/sandboxes").await.ok();
            log.contains("start command")
        })
        .await;
    let id = boxes.as_array().unwrap().iter().find(|row| row["metadata"]["template-build"] == "hopeless").unwrap();
    assert_eq!(e2b.delete(&format!("/sandboxes/{}", id["sandboxID"].as_str().unwrap())).await.status, 204);
    assert_eq!(e2b.ended(&begun).await["reason"]["step"], "finalize");
    assert_eq!(e2b.snapshots().await, ["template", "template"]);
}

#[tokio::test]
async fn a_new_build_takes_the_place_of_the_old_one_whose_files_go() {
    let e2b = E2b::native().await;
    e2b.built("app", json!([step("RUN", &["echo old > ~/version"])])).await;
    let old = e2b.of_template("app").await;
    e2b.built("app", json!([step("RUN", &["echo new > ~/version"])])).await;
    assert_eq!(e2b.output(&e2b.of_template("app").await, "cat /home/user/version").await, "new\n");
    assert_eq!(e2b.output(&old, "cat /home/user/version").await, "old\n");
    assert_eq!(e2b.snapshots().await, ["template"]);
    // The files belong to the template.
    let id = e2b.server.get("/templates/app").await.ok()["snapshot"].as_str().unwrap().to_owned();
    e2b.server.delete(&format!("/snapshots/{id}")).await.refused(409, "conflict", "delete the template");
    assert_eq!(e2b.get("/snapshots").await.ok(), json!([]));
    // A template that was stored is not replaced by a build.
    e2b.server.post("/templates", json!({"name": "stored", "memory_mb": 128})).await.ok();
    let status = e2b.build("stored", json!([])).await;
    assert!(status["reason"]["message"].as_str().unwrap().contains("`stored` was stored"), "{status}");
    assert_eq!(e2b.snapshots().await, ["template"]);
    // The API spawns it, and replaces it whole.
    let spawn = json!({"template": "app"});
    let id = e2b.server.spawn_with(spawn).await;
    assert_eq!(e2b.server.output(&id, "cat /home/user/version").await, "new\n");
    let image = json!({"template": "app", "image": "host"});
    e2b.server.post("/sandboxes", image).await.refused(400, "bad_request", "leave out `image`");
    e2b.server.put("/templates/app", json!({"memory_mb": 128})).await.ok();
    assert!(e2b.server.get("/templates/app").await.ok().get("snapshot").is_none());
    assert_eq!(e2b.snapshots().await, Vec::<String>::new());
    e2b.built("other", json!([])).await;
    assert_eq!(e2b.delete("/templates/other").await.status, 204);
    refused(&e2b.delete("/templates/other").await, 404, "other");
    assert_eq!(e2b.snapshots().await, Vec::<String>::new());
}

#[tokio::test]
async fn tags_name_builds_of_a_template() {
    let e2b = E2b::native().await;
    let version = |n: &str| json!([step("RUN", &[&format!("echo {n} > ~/version")])]);
    let asked = json!({"name": "app", "tags": ["v1", "default"]});
    let first = e2b.build_as(asked, json!({"fromTemplate": "base", "steps": version("1")})).await;
    assert_eq!(first["status"], "ready", "{first}");
    e2b.built("app:v2", version("2")).await;
    let read = async |name: &str| e2b.output(&e2b.of_template(name).await, "cat /home/user/version").await;
    assert_eq!([read("app").await, read("app:v1").await, read("app:v2").await], ["1\n", "1\n", "2\n"]);
    let tagged = e2b.post("/templates/tags", json!({"target": "app:v2", "tags": ["latest", "default"]})).await;
    assert_eq!(tagged.status, 201, "{}", tagged.json());
    assert_eq!([read("app").await, read("app:latest").await, read("app:v1").await], ["2\n", "2\n", "1\n"]);
    let listed = e2b.get("/templates/app/tags").await.ok();
    let tags = |listed: &Value| -> Vec<(String, bool)> {
        let of_first = |row: &Value| row["buildID"] == first["buildID"];
        let rows = listed.as_array().unwrap().iter();
        rows.map(|row| (row["tag"].as_str().unwrap().to_owned(), of_first(row))).collect()
    };
    let expected = [("default", false), ("latest", false), ("v1", true), ("v2", false)];
    assert_eq!(tags(&listed), expected.map(|(tag, of_first)| (tag.to_owned(), of_first)));
    let untag =
        |tags: &[&str]| e2b.asking(Method::DELETE, "/templates/tags").json(&json!({"name": "app", "tags": tags}));
    assert_eq!(answer(untag(&["v1"])).await.status, 204);
    assert_eq!(e2b.snapshots().await, ["template"], "nothing starts from the first build any more");
    refused(&answer(untag(&["v2", "v9"])).await, 404, "app:v9");
    assert_eq!(e2b.get("/templates/app/tags").await.ok().as_array().unwrap().len(), 3);
    for (body, status, words) in [
        (json!({"target": "app", "tags": []}), 400, "tags"),
        (json!({"target": "app", "tags": ["a b"]}), 400, "tag"),
        (json!({"target": "app:", "tags": ["x"]}), 400, "tag"),
        (json!({"target": "a/b", "tags": ["x"]}), 400, "`name`"),
        (json!({"target": "none", "tags": ["x"]}), 404, "none"),
    ] {
        refused(&e2b.post("/templates/tags", body).await, status, words);
    }
    refused(&e2b.get("/templates/none/tags").await, 404, "none");
    assert_eq!(e2b.delete("/templates/app").await.status, 204);
    assert_eq!(e2b.server.get("/templates").await.ok(), json!([]));
}

#[tokio::test]
async fn a_request_that_cannot_be_a_build_is_refused_by_what_is_wrong() {
    let e2b = E2b::mock().await;
    for (body, words) in [
        (json!({}), "name"),
        (json!({"name": "a b"}), "`name`"),
        (json!({"name": "team/app"}), "`name`"),
        (json!({"name": "app", "tags": ["a:b"]}), "tag"),
        (json!({"name": "app", "cpuCount": -1}), "cpuCount"),
    ] {
        refused(&e2b.post("/v3/templates", body).await, 400, words);
    }
    let begun = e2b.new_build(json!({"alias": "app"})).await;
    let path = format!("/v2/templates/{}/builds/{}", begun.template, begun.id);
    for (body, words) in [
        (json!({"steps": []}), "fromImage"),
        (json!({"fromImage": "a", "fromTemplate": "b"}), "fromImage"),
        (json!({"fromImage": "a", "fromImageRegistry": {"type": "aws"}}), "images.registries"),
        (json!({"fromTemplate": "base", "steps": [step("EXPOSE", &["80"])]}), "EXPOSE"),
        (json!({"fromTemplate": "base", "steps": [step("RUN", &[])]}), "command"),
        (json!({"fromTemplate": "base", "steps": vec![step("RUN", &["true"]); 1001]}), "1000"),
    ] {
        refused(&e2b.post(&path, body).await, 400, words);
    }
    refused(&e2b.post(&path, json!({"fromTemplate": "nonsense"})).await, 404, "nonsense");
    refused(&e2b.post("/v2/templates/app/builds/nonsense", json!({"fromTemplate": "base"})).await, 404, "nonsense");
    let status = e2b.get(&format!("/templates/app/builds/{}/status", begun.id)).await.ok();
    assert_eq!((&status["status"], &status["logEntries"]), (&json!("waiting"), &json!([])));
    e2b.start_build(&begun, json!({"fromTemplate": "base"})).await;
    refused(&e2b.post(&path, json!({"fromTemplate": "base"})).await, 409, "before");
    let past = format!("/templates/app/builds/{}/status?logsOffset=99999", begun.id);
    assert_eq!(e2b.get(&past).await.ok()["logEntries"], json!([]), "a client that reads on comes to an end");
    e2b.ended(&begun).await;
}

#[tokio::test]
async fn builds_and_files_of_one_owner_are_none_of_anothers() {
    let e2b = E2b::start(&format!("{NATIVE} auth.admin_api_key={ADMIN}")).await;
    let key = async |owner: &str| {
        let request = e2b.bare(Method::POST, "/api/v1/admin/keys").header("X-API-Key", ADMIN);
        let made =
            answer(request.json(&json!({"owner_id": owner, "scopes": ["sandboxes:write", "templates", "snapshots"]})))
                .await;
        made.ok()["secret"].as_str().unwrap().to_owned()
    };
    let (ann, eve) = (key("ann").await, key("eve").await);
    let ask = async |key: &str, method: Method, path: &str, body: Value| {
        answer(e2b.bare(method, path).header("X-API-Key", key).json(&body)).await
    };
    let asked = ask(&ann, Method::POST, "/v3/templates", json!({"name": "app"})).await.ok();
    let begun = Begun { template: "app".to_owned(), id: asked["buildID"].as_str().unwrap().to_owned() };
    let path = format!("/v2/templates/app/builds/{}", begun.id);
    let link = ask(&ann, Method::GET, &format!("/templates/app/files/{DIGEST}"), Value::Null).await.json();
    answer(e2b.http.put(link["url"].as_str().unwrap()).body(archive(&[("a", "a")], true))).await;
    let of_eve = ask(&eve, Method::GET, &format!("/templates/app/files/{DIGEST}"), Value::Null).await.json();
    assert_eq!(of_eve["present"], false);
    let recipe = json!({"fromTemplate": "base", "steps": [copy(&["a", "/a", "", ""])]});
    refused(&ask(&eve, Method::POST, &path, recipe.clone()).await, 404, &begun.id);
    assert_eq!(ask(&ann, Method::POST, &path, recipe).await.status, 202);
    let status = format!("/templates/app/builds/{}/status", begun.id);
    refused(&ask(&eve, Method::GET, &status, Value::Null).await, 404, &begun.id);
    e2b.server
        .until("the build", async || ask(&ann, Method::GET, &status, Value::Null).await.ok()["status"] == "ready")
        .await;
    refused(&ask(&eve, Method::POST, "/v2/sandboxes", json!({"templateID": "app"})).await, 404, "app");
    refused(&ask(&eve, Method::GET, "/templates/app/tags", Value::Null).await, 404, "app");
    refused(&ask(&eve, Method::DELETE, "/templates/app", Value::Null).await, 404, "app");
    assert_eq!(ask(&ann, Method::POST, "/v2/sandboxes", json!({"templateID": "app"})).await.status, 201);
}

#[tokio::test]
async fn a_crash_in_a_build_leaves_a_box_for_two_minutes_and_no_template() {
    let mut e2b = E2b::native().await;
    e2b.built("app", json!([])).await;
    e2b.upload(&archive(&[("a", "a")], true)).await;
    let uploads = e2b.server.data_dir().join("uploads");
    let uploaded = || std::fs::read_dir(&uploads).unwrap().count();
    assert_eq!(uploaded(), 1);
    let begun = e2b.new_build(json!({"name": "app"})).await;
    let steps = json!([step("RUN", &["echo running; sleep 1000"])]);
    e2b.start_build(&begun, json!({"fromTemplate": "base", "steps": steps})).await;
    let status = format!("/templates/app/builds/{}/status", begun.id);
    e2b.server
        .until("the step", async || e2b.get(&status).await.ok()["logEntries"].to_string().contains("\"running\""))
        .await;
    e2b.server.kill();
    e2b.server.launch().await;
    refused(&e2b.get(&status).await, 404, &begun.id);
    e2b.server.until("the files of the build are gone", async || uploaded() == 0).await;
    let left = e2b.get("/v2/sandboxes").await.ok();
    let ends: jiff::Timestamp = left[0]["endAt"].as_str().unwrap().parse().unwrap();
    assert!(ends.duration_since(jiff::Timestamp::now()).as_secs() <= 120, "{left}");
    assert_eq!(e2b.snapshots().await, ["template"]);
    e2b.of_template("app").await;
}

#[tokio::test]
async fn a_ready_command_has_no_longer_than_the_owner_may_wait() {
    let e2b = E2b::start(&format!("{NATIVE} defaults.max_exec_timeout=20s defaults.default_exec_timeout=10s")).await;
    let recipe =
        json!({"fromTemplate": "base", "startCmd": "touch /tmp/up; exec sleep 1000", "readyCmd": "test -e /tmp/up"});
    let status = e2b.build_as(json!({"name": "app"}), recipe).await;
    assert_eq!(status["status"], "ready", "{status}");
    e2b.of_template("app").await;
}

#[tokio::test]
async fn a_user_changes_nothing_where_a_sandbox_has_one_only() {
    if fixtures::found("proot", &[]).is_none() {
        return;
    }
    let settings = "providers.native.enabled=false providers.proot.enabled=true providers.default=proot";
    let e2b = E2b::start(settings).await;
    e2b.built("app", json!([step("USER", &["ann"]), step("RUN", &["echo x > /tmp/file", "bob"])])).await;
    let sandbox = e2b.of_template("app").await;
    e2b.call(&sandbox, "filesystem.Filesystem/Stat", json!({"path": "/tmp/file"})).await.ok();
    assert_eq!(e2b.output(&sandbox, "cat /tmp/file").await, "x\n");
}
