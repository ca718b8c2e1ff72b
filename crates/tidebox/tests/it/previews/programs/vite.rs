//! Hot reload: Vite's development server, and a page that changes without being loaded again.

use super::*;

/// Files of the site, whose page changes its word by itself.
const FILES: [(&str, &str); 5] = [
    (
        "index.html",
        "<!DOCTYPE html>\n<link rel=\"icon\" href=\"data:,\">\n<p id=\"word\"></p>\n<script type=\"module\" src=\"/main.js\"></script>\n",
    ),
    (
        "main.js",
        "import './style.css';\nimport { word } from './word.js';\n\
         const show = (word) => { document.querySelector('#word').textContent = word; };\nshow(word);\n\
         import.meta.hot.accept('./word.js', (changed) => show(changed.word));\n",
    ),
    ("word.js", "export const word = 'before';\n"),
    ("style.css", "p { color: rgb(1, 2, 3); }\n"),
    // As docs/use/previews.md has it.
    (
        "vite.config.js",
        "export default { server: { port: 3000, strictPort: true, allowedHosts: ['.box.example'] } };\n",
    ),
];

#[tokio::test]
async fn vite_changes_a_page_in_a_browser_without_loading_it_again() {
    let vite = installed("vite");
    if fixtures::found("vite", &[vite.join("node_modules/.bin/vite")]).is_none() {
        return;
    }
    let Some(mut browser) = Chromium::start().await else { return };
    let server = server(true).await;
    let id = server.spawn().await;
    if server.exec(&id, "command -v node").await["exit_code"] != 0 {
        return fixtures::skip("vite", "a box of the image `host` has no `node`");
    }
    copy(&server, &id, &vite, "/workspace/site").await;
    for (name, content) in FILES {
        server.write(&id, &format!("/workspace/site/{name}"), content).await;
    }
    start(&server, &id, "cd /workspace/site && exec node_modules/.bin/vite").await;
    // It listens for a moment before, to see whether the port is free.
    server.until("Vite is ready", async || server.output(&id, "cat /workspace/log").await.contains("ready in")).await;
    browser.open(&link(&server, &id).await).await;
    let word = "document.querySelector('#word').textContent";
    assert_eq!(browser.evaluate(word).await, "before");
    // It is connected once the client has heard of its server.
    browser.evaluate("window.isSame = true").await;
    server
        .until("the page is connected", async || {
            browser.evaluate("0").await;
            browser.has_said("[vite] connected.")
        })
        .await;
    server.write(&id, "/workspace/site/word.js", "export const word = 'after';\n").await;
    server.until("the word changes", async || browser.evaluate(word).await == "after").await;
    server.write(&id, "/workspace/site/style.css", "p { color: rgb(4, 5, 6); }\n").await;
    let color = "getComputedStyle(document.querySelector('#word')).color";
    server.until("the color changes", async || browser.evaluate(color).await == "rgb(4, 5, 6)").await;
    assert_eq!(browser.evaluate("window.isSame").await, true, "the page was loaded again");
    assert_eq!(browser.complaints(), [""; 0]);
    remove(&server, &id).await;
}
