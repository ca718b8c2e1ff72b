//! Images that a Docker Engine pulls for its boxes.

use fixtures::Engine;
use fixtures::image::Image;
use fixtures::registry::Registry;
use serde_json::json;

use super::{events, types};
use crate::server::TestServer;

#[tokio::test]
async fn a_pull_of_an_engine_is_told_as_one_of_the_store_is() {
    let (Some(registry), Some(image)) = (Registry::start(), Image::alpine_like()) else { return };
    let name = registry.push(&image, "team/app", "1");
    let missing = name.replace("team/app", "team/nothing");
    let Some(engine) = Engine::start() else { return };
    let settings = format!(
        "providers.native.enabled=false providers.docker.enabled=true providers.default=docker \
         providers.docker.socket={}",
        engine.socket().display()
    );
    let server = TestServer::start(&settings).await;
    let sandbox = server.post("/sandboxes", json!({"image": name})).await.ok();
    let told = events(&server, "image.pulling,image.pulled,image.failed").await;
    assert_eq!(types(&told), ["image.pulling", "image.pulled"], "{told:?}");
    for event in &told {
        assert_eq!((&event["sandbox_id"], &event["data"]["image"]), (&sandbox["id"], &json!(name)), "{event}");
    }
    assert!(told[1]["data"]["digest"].as_str().unwrap().starts_with("sha256:"), "{told:?}");
    // The second sandbox finds the image in the Engine.
    server.post("/sandboxes", json!({"image": name})).await.ok();
    assert_eq!(events(&server, "image.pulling").await.len(), 1);

    server.post("/sandboxes", json!({"image": missing})).await.refused(400, "bad_request", &missing);
    let told = events(&server, "image.pulling,image.pulled,image.failed").await;
    assert_eq!(types(&told), ["image.pulling", "image.pulled", "image.pulling", "image.failed"], "{told:?}");
    assert_eq!(told[3]["data"]["image"], json!(missing));
    assert!(told[3]["data"]["error"].as_str().unwrap().contains(&missing), "{told:?}");
}
