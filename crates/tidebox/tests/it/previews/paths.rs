//! Previews at paths of the API's own host.

use super::*;

#[tokio::test]
async fn a_path_stands_for_a_port_only_where_it_is_switched_on_and_its_pages_have_no_origin() {
    let off = server(false).await;
    let id = serving(&off).await;
    let path = format!("/proxy/{id}/3000/a?b=1");
    assert_eq!(get(&off, "localhost", &path, "").await.status, 404);
    drop(off);

    let settings = format!("{NATIVE} server.preview_domain={DOMAIN} server.path_proxy=true");
    let server = TestServer::builder(&settings).key(KEY).start().await;
    let id = serving(&server).await;
    let path = format!("/proxy/{id}/3000/a?b=1");
    assert_eq!(get(&server, "localhost", &path, "").await.status, 401);
    let token = token(&server, &id).await;
    let cookie = format!("Cookie: tidebox-preview={token}\r\n");
    assert_eq!(get(&server, "localhost", &path, &cookie).await.status, 401, "cookies are those of all sandboxes");
    let headers = format!("X-API-Key: {KEY}\r\nCookie: a=1\r\nX-Forwarded-Prefix: /x\r\n");
    let answer = get(&server, "localhost", &path, &headers).await;
    let told = answer.told();
    assert_eq!(told["line"], "GET /a?b=1 HTTP/1.1");
    let head = told["head"].to_string();
    assert!(head.contains(&format!("x-forwarded-prefix: /proxy/{id}/3000\"")) && !head.contains("cookie"), "{head}");
    assert_eq!(answer.header("content-security-policy"), Some("sandbox allow-scripts allow-forms"));
    assert_eq!(answer.header("set-cookie"), None);
    let acting = "HTTP/1.1 401 No\r\nContent-Length: 0\r\nX-Own: 1\r\nClear-Site-Data: \"*\"\r\nAlt-Svc: clear\r\n\
                  Strict-Transport-Security: max-age=1\r\nService-Worker-Allowed: /\r\nWWW-Authenticate: Basic\r\n\r\n";
    let hex: String = acting.bytes().map(|byte| format!("{byte:02x}")).collect();
    let answer = get(&server, "localhost", &format!("/proxy/{id}/3000/raw/{hex}"), &headers).await;
    assert_eq!((answer.status, answer.header("x-own")), (401, Some("1")));
    for name in
        ["clear-site-data", "alt-svc", "strict-transport-security", "service-worker-allowed", "www-authenticate"]
    {
        assert_eq!(answer.header(name), None, "{name} acts on the whole origin");
    }
    let linked = get(&server, "localhost", &format!("/proxy/{id}/3000?token={token}"), "").await;
    assert_eq!(linked.told()["line"], "GET / HTTP/1.1");
    let keyed = format!("X-API-Key: {KEY}\r\n");
    for malformed in ["/proxy/", "/proxy/x/3000/", &format!("/proxy/{id}/0/"), &format!("/proxy/{id}/")] {
        assert_eq!(get(&server, "localhost", malformed, &keyed).await.status, 400, "{malformed}");
    }
}

#[tokio::test]
async fn a_path_is_not_reached_by_a_name_that_a_page_made_resolve_to_this_machine() {
    let server = TestServer::start(&format!("{NATIVE} server.path_proxy=true")).await;
    let id = serving(&server).await;
    let path = format!("/proxy/{id}/3000/");
    assert_eq!(get(&server, "evil.example", &path, "").await.status, 403);
    assert_eq!(get(&server, "localhost", &path, "").await.status, 200);
}
