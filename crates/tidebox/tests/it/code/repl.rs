//! The REPL at a terminal.

use std::path::Path;

use super::IMAGE;
use crate::server::{NATIVE, TestServer};
use crate::terminals::{CommandLine, Person, command_line_with, mode};

/// Starts a REPL whose files are in a folder.
fn repl(server: &TestServer, folder: &Path, args: &[&str]) -> CommandLine {
    let args = [&["repl"], args].concat();
    command_line_with(server, &args, |command| {
        command.current_dir(folder).env("XDG_STATE_HOME", folder.join("state"));
        for name in ["KITTY_WINDOW_ID", "TERM_PROGRAM", "LC_TERMINAL", "KONSOLE_VERSION", "TMUX", "STY"] {
            command.env_remove(name);
        }
    })
}

async fn at_prompt(line: CommandLine) -> Person {
    let mut person = Person::CommandLine(line);
    person.until("python> ").await;
    person
}

/// Types a line at the prompt and waits for the next one, above which the screen ends with `answer`.
async fn ask(person: &mut Person, typed: &str, answer: &str) {
    person.keys(&format!("{typed}\r")).await;
    let shown = format!("{answer}\npython>");
    person.until_shown(&shown, |screen| screen.trim_end().ends_with(&shown)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_talks_with_python_and_comes_back_to_it() {
    let server = TestServer::start(NATIVE).await;
    let folder = tempfile::tempdir().unwrap();
    let id = server.spawn().await;
    let mut person = at_prompt(repl(&server, folder.path(), &["python", &id])).await;
    ask(&mut person, "a_long_name = 6", "python> a_long_name = 6").await;
    ask(&mut person, "a_lo\t * 7", "python> a_long_name * 7\n42").await;
    // A block ends with an empty line, and Tab indents.
    ask(&mut person, "def twice(x):\r\treturn 2 * x\r", "    return 2 * x\n").await;
    ask(&mut person, "twice(21.5)", "python> twice(21.5)\n43.0").await;
    ask(&mut person, "print('no end', end='')", "no end").await;
    // The line before Ctrl-C is not run.
    person.keys("what is this\x03").await;
    person.until("python> what is this\npython>").await;
    ask(&mut person, "'next' 'line'", "python> 'next' 'line'\n'nextline'").await;
    // Keys typed before the prompt are not lost.
    ask(&mut person, "1 + 1\r2 + 2\r3 + 3", "python> 3 + 3\n6").await;
    person.keys("\x04").await;
    assert_eq!(person.end().await, 0);
    let mut person = at_prompt(repl(&server, folder.path(), &[&id])).await;
    let up = "\x1b[A".repeat(6);
    ask(&mut person, &up, "python> twice(21.5)\n43.0").await;
    person.keys("exit()\r").await;
    assert_eq!(person.end().await, 0);
    let history = std::fs::read_to_string(folder.path().join("state/tidebox/history-python")).unwrap();
    assert!(history.contains("def twice(x):\\n"), "{history}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_interrupts_and_restarts_what_ignores_it() {
    let server = TestServer::start(NATIVE).await;
    let folder = tempfile::tempdir().unwrap();
    let id = server.spawn().await;
    let mut person = at_prompt(repl(&server, folder.path(), &[&id])).await;
    ask(&mut person, "x = 5", "python> x = 5").await;
    person.keys("exec(\"print('run' 'ning')\\nwhile True: pass\")\r").await;
    person.until("running").await;
    person.keys("\x03").await;
    person.until("KeyboardInterrupt").await;
    ask(&mut person, "x + 1", "python> x + 1\n6").await;
    let endless = "while 1:\\n try: time.sleep(9)\\n except: print('hea' 'rd')";
    let stubborn = format!("import time; exec(\"print('be' 'gun')\\n{endless}\")\r");
    person.keys(&stubborn).await;
    person.until("begun").await;
    person.keys("\x03").await;
    person.until("heard").await;
    person.keys("\x03").await;
    person.until("Ctrl-C again").await;
    person.keys("\x03").await;
    person.until_shown("a prompt after it", |shown| shown.trim_end().ends_with("python>")).await;
    person.keys("x + 2\r").await;
    person.until("NameError").await;
    person.keys("\x04").await;
    assert_eq!(person.end().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interpreter_that_ended_is_replaced_and_said_to_be() {
    let server = TestServer::start(NATIVE).await;
    let folder = tempfile::tempdir().unwrap();
    let id = server.spawn().await;
    let mut person = at_prompt(repl(&server, folder.path(), &[&id])).await;
    person.keys("import os; os._exit(3)\r").await;
    person.until("KernelDied").await;
    person.keys("1 + 1\r").await;
    person.until("without its state").await;
    person.until("2\npython>").await;
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    person.keys("1 + 2\r").await;
    person.until("error: ").await;
    assert_eq!(person.end().await, 125);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_that_shows_no_images_saves_them() {
    let server = TestServer::start(NATIVE).await;
    let folder = tempfile::tempdir().unwrap();
    let id = server.spawn().await;
    server.post(&format!("/sandboxes/{id}/run"), serde_json::json!({"code": IMAGE})).await;
    let mut person = at_prompt(repl(&server, folder.path(), &[&id])).await;
    ask(&mut person, "Pixel()", "saved in tidebox-1.png\na pixel").await;
    assert!(folder.path().join("tidebox-1.png").exists());
    person.keys("\x04").await;
    assert_eq!(person.end().await, 0);
    let kitty = command_line_with(&server, &["repl", &id], |command| {
        command.current_dir(folder.path()).env("XDG_STATE_HOME", folder.path()).env("TERM", "xterm-kitty");
        command.env_remove("TMUX").env_remove("STY");
    });
    let mut person = at_prompt(kitty).await;
    person.keys("Pixel()\r'after' ' it'\r").await;
    person.until("'after it'\npython>").await;
    assert!(!person.shown().contains("pixel\n"), "{}", person.shown());
    assert!(!folder.path().join("tidebox-2.png").exists());
    person.keys("\x04").await;
    assert_eq!(person.end().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_at_the_prompt_leaves_the_terminal_as_it_was() {
    let server = TestServer::start(NATIVE).await;
    let folder = tempfile::tempdir().unwrap();
    let id = server.spawn().await;
    let line = repl(&server, folder.path(), &[&id, "--new"]);
    let terminal = line.terminal();
    let before = mode(&terminal);
    let person = at_prompt(line).await;
    assert_ne!(mode(&terminal), before, "the editor reads keys");
    let Person::CommandLine(line) = &person else { unreachable!() };
    line.terminate();
    assert_eq!(person.end().await, 143);
    assert_eq!(mode(&terminal), before);
    let contexts = server.get(&format!("/sandboxes/{id}/contexts")).await.ok();
    assert_eq!(contexts, serde_json::json!([]), "the new context is deleted");
}
