//! Keys, tokens and cookies of previews.

use reqwest::Method;

use super::*;
use crate::cli::tidebox;
use crate::server::Answer;

/// Returns the token of a cookie that an answer sets.
#[track_caller]
fn cookie(reply: &Reply) -> String {
    let line = reply.header("set-cookie").unwrap_or_else(|| panic!("no cookie: {reply:?}"));
    let (cookie, attributes) = line.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Lax");
    cookie.to_owned()
}

#[tokio::test]
async fn a_link_becomes_a_cookie_that_opens_one_port_of_one_sandbox_also_after_a_restart() {
    let mut server = server(true).await;
    let (id, other) = (serving(&server).await, serving(&server).await);
    let refused = get(&server, &host(&id), "/", "Accept: text/html\r\n").await;
    assert!(refused.status == 401 && refused.body.contains("tidebox open"), "{refused:?}");
    let minted = server.post(&format!("/sandboxes/{id}/preview"), json!({"port": 3000, "ttl": "2h"})).await.ok();
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    let (_, port) = address.rsplit_once(':').unwrap();
    let (token, url) = (minted["token"].as_str().unwrap(), minted["url"].as_str().unwrap());
    assert_eq!(url, format!("http://{}:{port}/?token={token}", host(&id)));
    let opened = get(&server, &host(&id), &format!("/a?b=1&token={token}"), "").await;
    assert_eq!((opened.status, opened.header("location")), (303, Some("/a?b=1")), "{opened:?}");
    let cookie = cookie(&opened);
    assert_eq!(cookie, format!("tidebox-preview={token}"));
    // No other host, by whatever spelling of the path.
    for path in ["//evil.example/", "/\\evil.example/", "///evil.example/"] {
        let location = get(&server, &host(&id), &format!("{path}?token={token}"), "").await;
        assert_eq!(location.header("location").unwrap(), format!("/.{path}"));
    }
    server.kill();
    server.launch().await;
    // As a browser asks for a page over plain HTTP.
    let cookie = format!("{cookie}\r\nUpgrade-Insecure-Requests: 1");
    let told = get(&server, &host(&id), "/", &format!("Cookie: a=1; {cookie}\r\n")).await;
    assert!(!told.body.contains("tbp-") && told.body.contains("cookie: a=1\""), "{told:?}");
    assert_eq!(told.told()["line"], "GET / HTTP/1.1");
    assert_eq!(get(&server, &host(&id), "/", &format!("X-Preview-Token: {token}\r\n")).await.status, 200);
    let posted = format!("POST /a?token={token} HTTP/1.1\r\nHost: {}\r\nContent-Length: 2\r\n\r\nhi", host(&id));
    let posted = raw(&server, &posted).await.told();
    assert_eq!((&posted["line"], &posted["body"]), (&json!("POST /a HTTP/1.1"), &json!(2)));
    for (host, what) in [(host(&other), "another sandbox"), (format!("3001-{id}.{DOMAIN}"), "another port")] {
        for credential in [format!("Cookie: {cookie}\r\n"), format!("X-Preview-Token: {token}\r\n")] {
            assert_eq!(get(&server, &host, "/", &credential).await.status, 401, "{what}");
        }
        assert_eq!(get(&server, &host, &format!("/?token={token}"), "").await.status, 401, "{what}");
    }
    // Neither opens the API.
    let listed = server.http.get(format!("{}/api/v1/sandboxes?token={token}", server.url));
    let listed = listed.header("cookie", format!("tidebox-preview={token}"));
    assert_eq!(listed.send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn a_public_url_needs_nothing_and_ends_with_its_time() {
    let server = server(true).await;
    let id = serving(&server).await;
    let mint = async |body: Value| server.post(&format!("/sandboxes/{id}/preview"), body).await;
    let minted = mint(json!({"port": 3000, "public": true})).await.ok();
    assert!(minted.get("token").is_none() && minted["public"] == true, "{minted}");
    let url = minted["url"].as_str().unwrap();
    let public = url.strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    assert_eq!(get(&server, &public, "/", "Origin: https://other.example\r\n").await.status, 200);
    assert_eq!(get(&server, &public.to_uppercase(), "/", "").await.status, 200);
    // For another port or sandbox, or altered, it is nothing.
    assert_eq!(get(&server, &public.replacen("3000", "3001", 1), "/", "").await.status, 401);
    let end = public.find(&format!(".{DOMAIN}")).unwrap();
    let (rest, last) = public[..end].split_at(end - 1);
    let altered = format!("{rest}{}{}", if last == "a" { "b" } else { "a" }, &public[end..]);
    assert_eq!(get(&server, &altered, "/", "").await.status, 401);
    let short = mint(json!({"port": 3000, "public": true, "ttl": "1s"})).await.ok();
    let short = short["url"].as_str().unwrap().strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    server.until("it has expired", async || get(&server, &short, "/", "").await.status == 401).await;
    for (body, status, words) in [
        (json!({"port": 0}), 400, "port"),
        (json!({"port": 65536}), 400, "port"),
        (json!({}), 400, "port"),
        (json!({"port": 1, "ttl": "0s"}), 400, "ttl"),
        (json!({"port": 1, "ttl": "soon"}), 400, "ttl"),
        (json!({"port": 1, "ttl": "100h"}), 429, "ttl"),
        (json!({"port": 1, "more": 1}), 400, "more"),
    ] {
        let answer = mint(body).await;
        assert_eq!(answer.status, status, "{}", answer.json());
        assert!(answer.json()["message"].as_str().unwrap().contains(words), "{}", answer.json());
    }
    let unknown = "/sandboxes/sb-aaaaaaaaaaaaaaaa/preview";
    server.post(unknown, json!({"port": 1})).await.refused(404, "not_found", "sb-aaaaaaaaaaaaaaaa");
}

#[tokio::test]
async fn a_page_of_another_sandbox_cannot_use_the_cookie_of_a_person() {
    let server = server(true).await;
    let id = serving(&server).await;
    let cookie = format!("Cookie: tidebox-preview=x; tidebox-preview={}\r\n", token(&server, &id).await);
    let own = format!("Origin: http://{}\r\n", host(&id));
    let sibling = format!("Origin: http://8000-{id}.{DOMAIN}\r\n");
    let stranger = format!("Origin: http://3000-sb-aaaaaaaaaaaaaaaa.{DOMAIN}\r\n");
    let switch = "Connection: upgrade\r\nUpgrade: echo\r\n";
    for (headers, status) in [
        (own.clone(), 200),
        (sibling, 200),
        (String::new(), 401),
        (own.replace("Origin: ", "Referer: "), 200),
        (stranger.replace("Origin: ", "Referer: "), 401),
        ("Upgrade-Insecure-Requests: 1\r\n".to_owned(), 200),
        (stranger.clone(), 401),
        ("Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\n".to_owned(), 401),
        ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n".to_owned(), 200),
        ("Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n".to_owned(), 200),
        ("Sec-Fetch-Site: same-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n".to_owned(), 401),
        ("Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: object\r\n".to_owned(), 401),
        ("Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: iframe\r\n".to_owned(), 200),
    ] {
        assert_eq!(get(&server, &host(&id), "/", &format!("{cookie}{headers}")).await.status, status, "{headers}");
    }
    let switched = format!("GET /switch HTTP/1.1\r\nHost: {}\r\n{switch}{cookie}{stranger}\r\n", host(&id));
    assert_eq!(raw(&server, &switched).await.status, 401);
}

#[tokio::test]
async fn without_keys_a_page_of_elsewhere_opens_no_websocket() {
    let server = server(false).await;
    let id = serving(&server).await;
    let switch = "Connection: upgrade\r\nUpgrade: echo\r\n";
    let ask = async |origin: &str| {
        let request = format!("GET /switch HTTP/1.1\r\nHost: {}\r\n{switch}Origin: {origin}\r\n\r\n", host(&id));
        let mut stream = dial(&server).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        String::from_utf8_lossy(&status[9..]).into_owned()
    };
    assert_eq!(ask("https://evil.example").await, "403");
    assert_eq!(ask(&format!("http://{}", host(&id))).await, "101");
}

#[tokio::test]
async fn where_users_share_boxes_a_preview_asks_whose_it_is_unless_it_has_a_link() {
    let server = TestServer::start(&format!("{NATIVE} server.preview_domain={DOMAIN} pool.enabled=true")).await;
    let as_user = async |user: &str, method: Method, path: &str, body: Value| {
        let request = server.request(method, path).header("x-user-id", user).json(&body);
        Answer::read(request.send().await.unwrap()).await
    };
    let spawned = as_user("ann", Method::POST, "/sandboxes", json!({})).await;
    let id = spawned.ok()["id"].as_str().unwrap().to_owned();
    let mint = format!("/sandboxes/{id}/preview");
    as_user("bob", Method::POST, &mint, json!({"port": 3000})).await.refused(404, "not_found", &id);
    let minted = as_user("ann", Method::POST, &mint, json!({"port": 3000})).await.ok();
    let token = minted["token"].as_str().unwrap();
    for (headers, status) in [
        (String::new(), 400),
        ("X-User-ID: bob\r\n".to_owned(), 404),
        ("X-User-ID: ann\r\n".to_owned(), 502),
        (format!("X-Preview-Token: {token}\r\n"), 502),
    ] {
        assert_eq!(get(&server, &host(&id), "/", &headers).await.status, status, "{headers}");
    }
    as_user("ann", Method::DELETE, &format!("/sandboxes/{id}"), json!({})).await.ok();
}

#[tokio::test]
async fn the_command_line_prints_a_url_that_opens_the_port() {
    let server = server(false).await;
    let id = serving(&server).await;
    let open = |arguments: &[&str]| {
        let arguments: Vec<&str> = ["open", &id].into_iter().chain(arguments.iter().copied()).collect();
        let output = tidebox(&server, &arguments, b"");
        (output.status.code(), String::from_utf8(output.stdout).unwrap().trim_end().to_owned())
    };
    let (code, url) = open(&["3000", "--print", "--ttl", "5m"]);
    assert!(code == Some(0) && url.contains(&format!("//{}:", host(&id))), "{url}");
    let query = url.split_once("/?").unwrap().1;
    assert_eq!(get(&server, &host(&id), &format!("/?{query}"), "").await.status, 303);
    let (code, url) = open(&["3000", "--public"]);
    assert!(code == Some(0) && !url.contains('?'), "{url}");
    let public = url.strip_prefix("http://").unwrap().trim_end_matches('/');
    assert_eq!(get(&server, public, "/", "").await.status, 200);
    for arguments in [&["0"][..], &["65536"], &["3000", "--ttl", "soon"]] {
        assert_ne!(open(arguments).0, Some(0), "{arguments:?}");
    }
}
