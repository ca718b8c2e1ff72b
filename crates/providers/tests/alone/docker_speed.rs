//! Time that a box costs compared with the Engine's own operations, in one run.

use std::time::{Duration, Instant};

use providers::native::{Native, NativeConfig};
use providers::{Provider, Spec};

use crate::harness::{IMAGE, TestBox, TestProvider, command, new_id, new_store, spec};

/// Number of rounds of each kind. Too few to measure exactly on a loaded machine, so the bounds
/// below leave room; `tidebox bench` has the precise figures.
const ROUNDS: usize = 15;

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spawn_costs_little_more_than_the_engines_own_create_and_start() {
    let _quiet = crate::QUIET.lock().await;
    let Some(provider) = TestProvider::new().await else { return };
    // The agent is installed once per server.
    let warm = provider.start().await;
    let body = format!(
        r#"{{"Image": "{IMAGE}", "Entrypoint": ["/bin/sleep", "1000"], "OpenStdin": true, "HostConfig": {{
            "NetworkMode": "none", "LogConfig": {{"Type": "none"}}, "Memory": 268435456, "MemorySwap": 268435456,
            "PidsLimit": 64, "CpuPeriod": 100000, "CpuQuota": 100000, "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"]}}}}"#
    );
    let (mut bare, mut ours, mut destroyed, mut exec) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("bare-{}-{round}", provider.config.store_id.as_str());
        let began = Instant::now();
        assert_eq!(provider.engine.api("POST", &format!("/containers/create?name={name}"), body.as_bytes()).0, 201);
        assert_eq!(provider.engine.api("POST", &format!("/containers/{name}/start"), b"").0, 204);
        bare.push(began.elapsed());
        assert_eq!(provider.engine.api("DELETE", &format!("/containers/{name}?force=1&v=1"), b"").0, 204);

        let id = new_id();
        let began = Instant::now();
        provider.docker.start(&id, &spec()).await.unwrap();
        ours.push(began.elapsed());
        let sandbox = TestBox::of(&provider.docker, id.clone());
        sandbox.text("true").await;
        let began = Instant::now();
        sandbox.text("true").await;
        exec.push(began.elapsed());
        let began = Instant::now();
        provider.docker.stop(&id).await.unwrap();
        destroyed.push(began.elapsed());
    }
    let (bare, ours, destroyed, exec) = (median(bare), median(ours), median(destroyed), median(exec));
    let ratio = ours.as_secs_f64() / bare.as_secs_f64();
    println!("create + start {bare:.1?}, spawn {ours:.1?} ({ratio:.2} x), exec {exec:.2?}, destroy {destroyed:.1?}");
    // 1.15 on a quiet machine.
    assert!(ratio < 1.5, "{ratio:.2}");
    assert!(destroyed < Duration::from_secs(1), "{destroyed:?}");
    warm.text("true").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_costs_little_more_than_on_native_after_the_first() {
    use futures_util::StreamExt;
    let _quiet = crate::QUIET.lock().await;
    let Some(provider) = TestProvider::new().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let config = NativeConfig {
        data_dir: folder.path().to_owned(),
        store_id: new_store(),
        cgroup_parent: None,
        subids: None,
        images: None,
        transparent_egress: false,
        fsync: false,
    };
    let native = Native::open(config).await.unwrap();
    let id = new_id();
    native.start(&id, &Spec { image: "host".to_owned(), ..spec() }).await.unwrap();
    let sandbox = provider.start().await;
    let (far, near) = (sandbox.guest().await, native.guest(&id).await.unwrap());
    let (mut on_docker, mut on_native) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        for (guest, times) in [(&far, &mut on_docker), (&near, &mut on_native)] {
            let began = Instant::now();
            let mut events = guest.exec(command(&["true"])).await.unwrap();
            while let Some(event) = events.next().await {
                event.unwrap();
            }
            times.push(began.elapsed());
        }
    }
    native.stop(&id).await.unwrap();
    native.idle().await;
    let (on_docker, on_native) = (median(on_docker), median(on_native));
    println!("exec of true: docker {on_docker:.2?}, native {on_native:.2?}");
    // 3 ms on a quiet machine.
    assert!(on_docker < on_native + Duration::from_millis(10), "{on_docker:?} {on_native:?}");
}
