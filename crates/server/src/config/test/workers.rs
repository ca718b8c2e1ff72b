//! Workers: their names and addresses.

use super::*;

#[test]
fn a_worker_may_be_called_after_its_host() {
    let text = "workers: {w1.example.com: {url: 'https://w1.example.com'}}\nauth: {worker_tokens: {w1.example.com: t}}";
    let config = TestLayers::new().here(text).load().config;
    assert_eq!(config.workers["w1.example.com"].url, "https://w1.example.com");
    assert_eq!(config.auth.worker_tokens["w1.example.com"].expose(), "t");
    check(
        "workers: {w1.example.com: {u.rl: x}}",
        &["workers.w1.example.com.u.rl (@): has a dot in its name; write each part as a separate section"],
    );
}

#[test]
fn a_worker_without_a_url_is_refused() {
    const REMEDY: &str = "is not set; set it to the URL of the worker, such as https://w1.example.com:7423";
    check("workers: {w1: {api_key: k}}", &[&format!("workers.w1.url (@): {REMEDY}")]);
    check_env(
        "TIDEBOX_WORKERS_W1_CA_FILE",
        "/etc/passwd",
        &format!("workers.w1.url (TIDEBOX_WORKERS_W1_CA_FILE): {REMEDY}"),
    );
    check("workers: {w1: {url: 'http://w1', api_key: k}}", &[]);
    let faults = TestLayers::new().here("workers: {w1: {url: w1, api_key: k}}").faults();
    assert!(faults.len() == 1 && faults[0].contains("must be an http or https URL"), "{faults:?}");
}

#[test]
fn an_id_that_no_worker_can_have_is_refused() {
    const LOCAL: &str = "is the id of this server itself; choose another id for the worker";
    const SHAPE: &str = "has a worker id that is not 1 to 128 letters, digits, `.`, `_` or `-`";
    check("workers: {local: {url: 'http://a'}}", &[&format!("workers.local.url (@): {LOCAL}")]);
    check("auth: {worker_tokens: {local: k}}", &[&format!("auth.worker_tokens.local (@): {LOCAL}")]);
    check("auth: {worker_tokens: {'a b': k}}", &[&format!("auth.worker_tokens.a b (@): {SHAPE}")]);
    check_env("TIDEBOX_WORKERS_A B_URL", "http://a", &format!("workers.a b.url (TIDEBOX_WORKERS_A B_URL): {SHAPE}"));
}
