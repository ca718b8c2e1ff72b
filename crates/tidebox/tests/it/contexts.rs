//! Code in interpreters that keep their state.

mod bad_input;
mod example;
mod life;
mod platforms;
mod prepared;
mod speed;

use serde_json::{Value, json};

use crate::server::{Answer, TestServer};

/// A run, as its answer tells it.
#[derive(Debug)]
pub struct Run {
    lines: Vec<Value>,
}

impl Run {
    #[track_caller]
    fn of(answer: &Answer) -> Self {
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.bytes));
        let text = std::str::from_utf8(&answer.bytes).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let run = Self { lines };
        let last = run.lines.last().unwrap();
        assert_eq!(last["type"], "end", "{run:?}");
        run
    }

    fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.lines.iter().filter(move |line| line["type"] == kind)
    }

    fn first(&self, kind: &str) -> &Value {
        self.all(kind).next().unwrap_or_else(|| panic!("no {kind}: {self:?}"))
    }

    fn text(&self, kind: &str) -> String {
        self.all(kind).map(|line| line["text"].as_str().unwrap()).collect()
    }

    pub fn stdout(&self) -> String {
        self.text("stdout")
    }

    /// Returns the value of the last expression as text.
    pub fn value(&self) -> &str {
        let main = self.all("result").find(|line| line["main"] == true);
        main.unwrap_or_else(|| panic!("no value: {self:?}"))["data"]["text/plain"].as_str().unwrap()
    }

    fn error(&self) -> &str {
        self.first("error")["name"].as_str().unwrap()
    }

    pub fn outcome(&self) -> &str {
        self.first("end")["outcome"].as_str().unwrap()
    }
}

/// Runs code in the default context of a language.
pub async fn run(server: &TestServer, id: &str, language: &str, code: &str) -> Run {
    let answer = server.post(&format!("/sandboxes/{id}/run"), json!({"code": code, "language": language})).await;
    Run::of(&answer)
}

/// Runs code in a context.
pub async fn run_in(server: &TestServer, id: &str, context: &str, body: Value) -> Run {
    Run::of(&server.post(&format!("/sandboxes/{id}/contexts/{context}/run"), body).await)
}

/// Makes a context and returns its id.
async fn context(server: &TestServer, id: &str, body: Value) -> String {
    let answer = server.post(&format!("/sandboxes/{id}/contexts"), body).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    answer.json()["id"].as_str().unwrap().to_owned()
}

/// Returns whether the machine has an interpreter; says that the test is skipped otherwise.
fn has(program: &str) -> bool {
    fixtures::found(
        program,
        &["/usr/bin".into(), "/usr/local/bin".into()].map(|folder: std::path::PathBuf| folder.join(program)),
    )
    .is_some()
}
