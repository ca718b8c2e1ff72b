//! Secrets as the operator keeps them, and as commands get them.

use crate::cli::tidebox;
use crate::server::{Answer, MOCK};

use super::*;

#[tokio::test]
async fn what_is_no_secret_is_refused_and_says_what_to_change() {
    let server = TestServer::start(MOCK).await;
    let put = async |body: Value| server.put("/secrets/key", body).await;
    for (body, words) in [
        (json!({"value": "", "hosts": ["a.example"]}), "`value` must be"),
        (json!({"value": "line\n", "hosts": ["a.example"]}), "line break"),
        (json!({"value": " a", "hosts": ["a.example"]}), "`value` must be"),
        (json!({"value": "ä", "hosts": ["a.example"]}), "`value` must be"),
        (json!({"value": "x".repeat(8193), "hosts": ["a.example"]}), "8192"),
        (json!({"value": "a", "hosts": [], "form": "plain"}), "`header` and `form` are for requests"),
        (json!({"value": "a", "header": "x-key"}), "`header` and `form` are for requests"),
        (json!({"value": "a\0", "hosts": []}), "without NUL"),
        (json!({"value": "a", "hosts": vec!["a.example"; 101]}), "`hosts` may name at most 100"),
        (json!({"value": "a", "hosts": ["*"]}), "`hosts[0]`"),
        (json!({"value": "a", "hosts": ["*.com"]}), "wildcard"),
        (json!({"value": "a", "hosts": ["10.0.0.1"]}), "is an address"),
        (json!({"value": "a", "hosts": ["10.0.0.0/8"]}), "is an address"),
        (json!({"value": "a", "hosts": ["a.example:80"]}), "plain HTTP"),
        (json!({"value": "a", "hosts": ["a.example"], "header": "Host"}), "`header` must be"),
        (json!({"value": "a", "hosts": ["a.example"], "header": "transfer-encoding"}), "`header` must be"),
        (json!({"value": "a", "hosts": ["a.example"], "header": "a b"}), "`header` must be"),
        (json!({"value": "a", "hosts": ["a.example"], "header": ""}), "`header` must be"),
        (json!({"value": "a", "hosts": ["a.example"], "form": "digest"}), "`form` must be"),
        (json!({"value": "a", "hosts": ["a.example"], "form": "basic:a:b"}), "`user` must"),
        (json!({"value": "a", "hosts": ["a.example"], "owners": ["a b"]}), "`owners[0]`"),
        (json!({"value": "a", "hosts": ["a.example"], "placeholder": "b"}), "placeholder"),
        (json!({"hosts": ["a.example"]}), "value"),
    ] {
        put(body.clone()).await.refused(400, "bad_request", words);
    }
    for name in ["a%20b", "a%2Fb", &"x".repeat(65)] {
        let answer = server.put(&format!("/secrets/{name}"), json!({"value": "a", "hosts": ["a.example"]})).await;
        answer.refused(400, "bad_request", "name of a secret");
    }
    assert_eq!(server.get("/secrets").await.ok(), json!([]));
    server.get("/secrets/key").await.refused(404, "not_found", "secret `key` does not exist");
    server.delete("/secrets/key").await.refused(404, "not_found", "secret `key` does not exist");
    // A policy names secrets that are there.
    for body in [json!({"egress": {"mode": "open", "secrets": ["key"]}})] {
        server.post("/sandboxes", body.clone()).await.refused(404, "not_found", "secret `key` does not exist");
        let template = json!({"name": "t", "egress": body["egress"]});
        server.post("/templates", template).await.refused(404, "not_found", "secret `key` does not exist");
    }
    for (secrets, words) in [
        (json!(["a b"]), "`egress.secrets[0]`: `a b` does not name a secret"),
        (json!([""]), "does not name a secret"),
        (json!(["key@*"]), "names a host that"),
        (json!(vec!["key"; 51]), "it may name at most 50"),
    ] {
        let body = json!({"egress": {"mode": "open", "secrets": secrets}});
        server.post("/sandboxes", body).await.refused(400, "bad_request", words);
    }
    let none = json!({"egress": {"mode": "none", "secrets": ["key"]}});
    server.post("/sandboxes", none).await.refused(400, "bad_request", "`egress.secrets` has no effect");
}

#[tokio::test]
async fn a_secret_is_shown_without_its_value_and_kept_with_the_time_of_its_first_save() {
    let server = TestServer::start(MOCK).await;
    let first = server.put("/secrets/b", json!({"value": "1", "hosts": ["B.example", "*.c.example:8443"]})).await.ok();
    assert_eq!(first["hosts"], json!(["b.example", "*.c.example:8443"]));
    assert_eq!((&first["header"], &first["form"]), (&json!("authorization"), &json!("bearer")));
    server.put("/secrets/a", json!({"value": "1", "hosts": ["a.example"], "header": "X-Key"})).await.ok();
    let again = json!({"value": "2", "hosts": ["b.example"], "form": "basic:ann", "owners": ["ann"]});
    let second = server.put("/secrets/b", again).await.ok();
    assert_eq!(second["created_at"], first["created_at"]);
    assert_eq!((&second["form"], &second["owners"]), (&json!("basic:ann"), &json!(["ann"])));
    let all = server.get("/secrets").await.ok();
    let names: Vec<&str> = all.as_array().unwrap().iter().map(|secret| secret["name"].as_str().unwrap()).collect();
    assert_eq!((names, &all[0]["form"]), (vec!["a", "b"], &json!("plain")));
    assert_eq!(server.get("/secrets/b").await.ok(), second);
    server.delete("/secrets/b").await.ok();
    assert_eq!(server.get("/secrets").await.ok().as_array().unwrap().len(), 1);
    let audit = server.get("/admin/audit").await.ok();
    let actions: Vec<&str> = audit
        .as_array()
        .or(audit["entries"].as_array())
        .unwrap()
        .iter()
        .map(|entry| entry["action"].as_str().unwrap())
        .collect();
    assert_eq!(actions.iter().filter(|action| **action == "secrets.save").count(), 3, "{actions:?}");
    assert!(actions.contains(&"secrets.delete"));
}

#[tokio::test]
async fn only_the_admin_key_opens_secrets_and_only_their_owners_use_them() {
    let settings =
        format!("{NATIVE} auth.enabled=true auth.api_key={} auth.admin_api_key={}", "a".repeat(32), "b".repeat(32));
    let server = TestServer::builder(&settings).key(&"a".repeat(32)).start().await;
    let body = json!({"value": VALUE, "hosts": ["api.example"], "owners": ["ann"]});
    server.put("/secrets/key", body.clone()).await.refused(401, "unauthorized", "");
    server.get("/secrets").await.refused(401, "unauthorized", "");
    let saved = server.request(Method::PUT, "/secrets/key").header("x-admin-api-key", "b".repeat(32)).json(&body);
    assert!(Answer::read(saved.send().await.unwrap()).await.ok()["name"] == "key");
    let egress = json!({"mode": "open", "secrets": ["key"]});
    let id = server.spawn_with(json!({"owner_id": "ann", "egress": egress})).await;
    for owner in [json!({"owner_id": "bob", "egress": egress}), json!({"egress": egress})] {
        server.post("/sandboxes", owner).await.refused(404, "not_found", "secret `key` does not exist");
    }
    let other = server.spawn_with(json!({"owner_id": "bob"})).await;
    let put = server.put(&format!("/sandboxes/{other}/egress"), egress.clone()).await;
    put.refused(404, "not_found", "secret `key` does not exist");
    server.put(&format!("/sandboxes/{id}/egress"), egress).await.ok();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_without_hosts_is_for_the_commands_that_name_it_and_stored_nowhere_else() {
    let server = TestServer::start(NATIVE).await;
    server.put("/secrets/key", json!({"value": VALUE, "owners": ["ann"]})).await.ok();
    let saved = server.put("/secrets/lines", json!({"value": "one\n two\n"})).await.ok();
    assert_eq!((&saved["hosts"], saved.get("header"), saved.get("form")), (&json!([]), None, None), "{saved}");
    server.put("/secrets/bound", json!({"value": "three", "hosts": ["api.example"]})).await.ok();
    let id = server.spawn_with(json!({"owner_id": "ann"})).await;
    let exec = async |id: &str, variables: Value| {
        let command = json!({"command": "env; cat /proc/1/environ /proc/1/cmdline", "env": {"OWN": "1", "A": "plain"}, "env_secret": variables});
        server.post(&format!("/sandboxes/{id}/exec"), command).await
    };
    let shown = exec(&id, json!({"A": "key", "B": "lines"})).await.ok();
    let output = shown["stdout"].as_str().unwrap();
    for line in [&format!("A={VALUE}\n"), "B=one\n two\n\n", "OWN=1\n"] {
        assert!(output.contains(line), "{line}: {output}");
    }
    assert_eq!(output.matches(VALUE).count(), 1, "{output}");
    // The next command has none of it.
    assert!(!server.output(&id, "env").await.contains(VALUE));
    let arguments = ["exec", "-n", "--env-secret", "A=key", &id, "--", "printenv", "A"];
    let output = tokio::task::block_in_place(|| tidebox(&server, &arguments, b""));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{VALUE}\n"), "{output:?}");
    let other = server.spawn_with(json!({"owner_id": "bob"})).await;
    exec(&other, json!({"A": "key"})).await.refused(404, "not_found", "secret `key` does not exist");
    exec(&id, json!({"A": "none"})).await.refused(404, "not_found", "secret `none` does not exist");
    exec(&id, json!({"A": "a b"})).await.refused(400, "bad_request", "`env_secret.A`: `a b` does not name a secret");
    exec(&id, json!({"A": "bound"})).await.refused(400, "bad_request", "never enters a sandbox");
    let policy = json!({"mode": "open", "secrets": ["key"]});
    server.put(&format!("/sandboxes/{id}/egress"), policy).await.refused(400, "bad_request", "not bound to a host");
    is_nowhere(&server, &id, VALUE).await;
}

#[tokio::test]
async fn secrets_open_with_the_key_that_they_were_sealed_with_only() {
    let mut site = Site::native().await;
    site.save("key", VALUE, "api.example").await;
    let id = site.spawn(&["key"]).await;
    assert_eq!(site.curl(&id, "https://HERE/").await, "ok\n");
    site.server.terminate();
    let key = site.server.data_dir().join("secrets.key");
    let own = std::fs::read(&key).unwrap();
    assert_eq!(own.len(), 32);
    std::fs::write(&key, [7; 32]).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    site.server.expect_trouble("sealed with a different key");
    site.server.expect_trouble("a request failed");
    site.server.launch().await;
    assert!(site.server.log_text().contains("other users may read or change this key"), "it is warned about");
    let policy = json!({"egress": {"mode": "open", "secrets": ["key"]}});
    let other = site.server.spawn_with(policy).await;
    let answer = site.curl(&other, "https://HERE/").await;
    assert!(answer.contains("secret for it cannot be read"), "{answer}");
    assert!(site.hosts.asked().iter().all(|asked| asked.header("authorization") == [bearer(VALUE)]));
    site.server.terminate();
    std::fs::write(&key, own).unwrap();
    site.server.launch().await;
    site.server.until("a request to go through", async || site.curl(&id, "https://HERE/").await == "ok\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_keeps_secrets() {
    let server = TestServer::start(MOCK).await;
    let line = |arguments: &[&str], stdin: &[u8]| tidebox(&server, arguments, stdin);
    let set = ["secret", "set", "key", "--host", "api.example", "--header", "X-Key"];
    let output = tokio::task::block_in_place(|| line(&set, b"the value\n"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("x-key") && !text.contains("the value"), "{text}");
    let listed = String::from_utf8(line(&["secret", "list"], b"").stdout).unwrap();
    assert!(listed.contains("key") && listed.contains("api.example") && listed.contains("plain"), "{listed}");
    let refused = line(&["secret", "set", "key", "--host", "api.example"], b"");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("`value` must be"), "{refused:?}");
    // A spawn that names nothing but a secret has a policy.
    let spawned = line(&["spawn", "--secret", "none"], b"");
    assert!(String::from_utf8_lossy(&spawned.stderr).contains("secret `none` does not exist"), "{spawned:?}");
    let id = String::from_utf8(line(&["spawn", "--secret", "key"], b"").stdout).unwrap();
    let policy = String::from_utf8(line(&["egress", id.trim()], b"").stdout).unwrap();
    assert!(policy.contains("allow-list; secrets key"), "{policy}");
    assert_eq!(line(&["secret", "delete", "key"], b"").stdout, b"key\n");
    let gone = line(&["secret", "get", "key"], b"");
    assert!(String::from_utf8_lossy(&gone.stderr).contains("does not exist"), "{gone:?}");
}
