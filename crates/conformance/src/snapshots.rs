//! Snapshots of boxes.

use futures_util::StreamExt;
use providers::{Error, SandboxId, SnapshotId, Spec};

use super::case::{Case, case};
use super::subject::{Inside, Need, Subject, eventually, noise, sh, soon};

/// Parts of a box that a provider was seen to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kept {
    /// Its files.
    pub files: bool,
    /// Its memory and its processes too.
    pub memory: bool,
    /// True if another box can be made of them.
    pub forks: bool,
    /// True if a paused box was written to disk and went on from there.
    pub suspends: bool,
}

impl Kept {
    /// Returns the provider's row of the table in `docs/use/snapshots.md`.
    #[must_use]
    pub fn row(&self, provider: &str) -> String {
        let parts = [self.files, self.memory, self.forks, self.suspends];
        let [files, memory, forks, suspends] = parts.map(|kept| if kept { "yes" } else { "no" });
        format!("| `{provider}` | {files} | {memory} | {forks} | {suspends} |")
    }
}

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(
            "a box that is made of a snapshot has the files of its box, and its changes are its own",
            apart,
            Snapshots
        ),
        case!(
            "a snapshot has modes, owners, times, attributes and links of files, and what was removed",
            faithful,
            Snapshots,
            Processes
        ),
        case!("a snapshot of a box that was made of a snapshot has the files of both", chained, Snapshots),
        case!("the files of a snapshot are those of one moment", one_moment, Snapshots, Processes),
        case!("a box whose snapshot is removed goes on, and no other is made of it", removed, Snapshots),
        case!("a box that does not exist has no snapshot, and nothing is left behind", absent, Snapshots),
        case!("dropping a snapshot leaves nothing that a removal does not remove", dropped, Snapshots),
        case!(
            "a later process lists the snapshots of an earlier one, and makes boxes of them",
            reopened,
            Snapshots,
            Reopen
        ),
        case!("a box that is paused stays paused when a snapshot is taken", paused, Snapshots, Pauses),
        case!("a box that is made of a snapshot runs as the image of its box says", imaged, FileSnapshots, RealImages),
        case!(
            "a snapshot of files says how the image of its box runs, for another provider",
            told,
            FileSnapshots,
            RealImages
        ),
        case!(
            "the disk limit of a box that is made of a snapshot counts what the box writes itself",
            bounded,
            FileSnapshots,
            DiskLimit,
            BoundedCopies
        ),
        case!(
            "the disk limit of a copy counts what its origin has written",
            copy_bounded,
            FileSnapshots,
            DiskLimit,
            BoundedCopies
        ),
        case!(
            "what only boxes keep of a snapshot that was removed is charged to them",
            charged,
            FileSnapshots,
            Processes,
            Disk
        ),
        case!("the processes of a box go on in those that are made of its snapshot", living, LiveSnapshots, Processes),
        case!("directories nested without an end make no snapshot hang", deep, Snapshots, Processes, Depth),
    ]
}

/// Tries what the provider keeps of a box.
pub(super) async fn kept(subject: Subject) -> Kept {
    let suspends = suspends(&subject).await;
    if subject.provider().snapshots().is_none() {
        return Kept { suspends, ..Kept::default() };
    }
    let origin = subject.start().await;
    origin.write("/workspace/kept", "kept").await;
    let snapshot = subject.snapshot_id();
    let taken = soon("a snapshot", subject.snapshots().take(&origin.id, &snapshot)).await.expect("a snapshot is taken");
    let made = made_of(&subject, &snapshot).await;
    let forks = made.read("/workspace/kept").await == b"kept";
    Kept { files: true, memory: taken.has_memory, forks, suspends }
}

async fn suspends(subject: &Subject) -> bool {
    let Some(pauses) = subject.provider().pauses().filter(|pauses| pauses.can_suspend()) else { return false };
    let inside = subject.start().await;
    inside.write("/workspace/kept", "kept").await;
    pauses.pause(&inside.id).await.expect("a box is paused");
    soon("the disk", pauses.suspend(&inside.id)).await.expect("a box is written to disk");
    pauses.resume(&inside.id).await.expect("a box goes on");
    subject.dial(inside.id).await.read("/workspace/kept").await == b"kept"
}

async fn take(subject: &Subject, id: &SandboxId) -> SnapshotId {
    let snapshot = subject.snapshot_id();
    soon("a snapshot", subject.snapshots().take(id, &snapshot)).await.expect("a snapshot is taken");
    snapshot
}

/// Takes a snapshot of a box that runs, and opens its inside again: with the memory the connection to it
/// ends.
pub(super) async fn take_of(subject: &Subject, inside: &mut Inside) -> SnapshotId {
    let snapshot = take(subject, &inside.id).await;
    *inside = subject.dial(inside.id.clone()).await;
    snapshot
}

fn spec_of(subject: &Subject, snapshot: &SnapshotId) -> Spec {
    Spec { snapshot: Some(snapshot.clone()), ..subject.spec() }
}

pub(super) async fn made_of(subject: &Subject, snapshot: &SnapshotId) -> Inside {
    subject.start_as(&spec_of(subject, snapshot)).await
}

async fn apart(subject: Subject) {
    let mut origin = subject.start().await;
    let large = noise(3_000_000);
    origin.write("/workspace/kept", "first").await;
    origin.write("/workspace/large", &large).await;
    origin.write("/workspace/folder/deep", "deep").await;
    let taken = {
        let snapshot = subject.snapshot_id();
        let taken = subject.snapshots().take(&origin.id, &snapshot).await.expect("a snapshot is taken");
        assert!(taken.size_bytes >= 3_000_000, "{taken:?}");
        assert_eq!(taken.has_memory, subject.snapshots().has_memory());
        snapshot
    };
    origin = subject.dial(origin.id).await;
    // What comes later is not in it.
    origin.write("/workspace/kept", "later").await;
    origin.guest.delete("/workspace/folder", true).await.unwrap();
    let (one, other) = (made_of(&subject, &taken).await, made_of(&subject, &taken).await);
    for inside in [&one, &other] {
        assert_eq!(inside.read("/workspace/kept").await, b"first");
        assert_eq!(inside.read("/workspace/folder/deep").await, b"deep");
        assert!(inside.read("/workspace/large").await == large);
    }
    one.write("/workspace/kept", "changed by one").await;
    one.guest.delete("/workspace/folder", true).await.unwrap();
    assert_eq!(other.read("/workspace/kept").await, b"first");
    assert_eq!(origin.read("/workspace/kept").await, b"later");
    let third = made_of(&subject, &taken).await;
    assert_eq!(third.read("/workspace/kept").await, b"first");
    assert!(third.exists("/workspace/folder/deep").await);
}

/// Makes every kind of entry below `/workspace`, and changes and removes files of the image.
const MAKE: &str = "set -e; cd /workspace; umask 022
printf secret > private; chmod 0600 private; printf run > tool; chmod 4755 tool; touch -d @1234567890 tool
mkdir -p dir/below; chmod 1777 dir; printf x > dir/below/x; mkdir empty
ln -s ../nowhere link; ln private again; mkfifo pipe
dd if=/dev/zero of=holes bs=1 count=1 seek=50000000 2>/dev/null; printf end >> holes
i=0; while [ $i -lt 300 ]; do printf $i > dir/$i; i=$((i+1)); done
printf changed > /etc/issue; rm -f /etc/profile; mv /etc/shells /etc/moved
rm -rf /var/spool; mkdir /var/spool; printf new > /var/spool/new; chmod 700 /var/spool";
/// Shows them.
const SHOW: &str = "cd /workspace
stat -c '%n %F %a %u %g %h' * dir/below/x /etc/issue /etc/moved /var/spool /var/spool/*; wc -c tool holes
stat -c %Y tool; readlink link; ls dir | wc -l; cat dir/299 dir/below/x; echo
[ private -ef again ] && echo one; tail -c 3 holes; echo
cat /etc/issue; ls /etc/profile 2>&1 | wc -l; [ -e /etc/profile ] || echo removed; ls -A /var/spool empty";

async fn faithful(subject: Subject) {
    let origin = subject.start().await;
    let made = origin.sh(MAKE).await;
    assert_eq!(made.code(), 0, "{}", String::from_utf8_lossy(&made.stderr));
    let users = subject.lacks(Need::Users).is_none();
    if users {
        let owned = origin.sh("cd /workspace; chown 1000:1001 private; chown -h 33 link; chown 65534:7 dir").await;
        assert_eq!(owned.code(), 0, "{}", String::from_utf8_lossy(&owned.stderr));
    }
    // Where it can be set.
    let attribute = "python3 -c \"import os; os.setxattr('/workspace/tool', 'user.note', b'kept')\" 2>/dev/null";
    let has_attribute = origin.sh(attribute).await.code() == 0;
    let expected = origin.sh(SHOW).await;
    assert!(expected.text().contains("one\n") && expected.text().contains("removed\n"), "{}", expected.text());
    let inside = made_of(&subject, &take(&subject, &origin.id).await).await;
    let found = inside.sh(SHOW).await;
    assert_eq!(found.text(), expected.text(), "{}", String::from_utf8_lossy(&found.stderr));
    if has_attribute {
        let read = "python3 -c \"import os; print(os.getxattr('/workspace/tool', 'user.note').decode())\"";
        assert_eq!(inside.sh(read).await.text(), "kept\n");
    }
    // Names of one file stay names of one file.
    assert_eq!(inside.sh("printf more >> /workspace/dir/0; cat /workspace/dir/0").await.text(), "0more");
}

async fn chained(subject: Subject) {
    let origin = subject.start().await;
    origin.write("/workspace/one", "1").await;
    origin.write("/workspace/gone", "x").await;
    let first = take(&subject, &origin.id).await;
    let mut second_box = made_of(&subject, &first).await;
    second_box.write("/workspace/two", "2").await;
    second_box.guest.delete("/workspace/gone", false).await.unwrap();
    let second = take_of(&subject, &mut second_box).await;
    // It needs the first no more.
    subject.snapshots().remove(&first).await.unwrap();
    let third_box = made_of(&subject, &second).await;
    assert_eq!(third_box.read("/workspace/one").await, b"1");
    assert_eq!(third_box.read("/workspace/two").await, b"2");
    assert!(!third_box.exists("/workspace/gone").await);
    third_box.write("/workspace/one", "changed").await;
    let third = take(&subject, &third_box.id).await;
    assert_eq!(made_of(&subject, &third).await.read("/workspace/one").await, b"changed");
    assert_eq!(made_of(&subject, &second).await.read("/workspace/one").await, b"1");
}

async fn one_moment(subject: Subject) {
    let origin = subject.start().await;
    // What `a` says is never behind `b`, and at most one ahead.
    let script = "cd /workspace; n=0; printf 0 > a; printf 0 > b; echo begun
        while :; do n=$((n+1)); printf $n > t; mv t a; printf $n > t; mv t b; done";
    let mut output = origin.guest.exec(sh(script)).await.expect("a command starts");
    output.next().await.expect("it has begun").expect("it runs");
    // With the memory the command ends at the first snapshot, and what it has written is kept all the same.
    for _ in 0..5 {
        let inside = made_of(&subject, &take(&subject, &origin.id).await).await;
        if subject.snapshots().has_memory() {
            // The command is there too, until it has noticed that its connection is gone.
            let ended = inside.sh("while grep -qs '[m]v t b' /proc/[0-9]*/cmdline; do sleep 0.1; done").await;
            assert_eq!(ended.code(), 0, "{ended:?}");
        }
        let number = async |name: &str| -> u64 {
            String::from_utf8(inside.read(name).await).unwrap().parse().expect("a number")
        };
        let (a, b) = (number("/workspace/a").await, number("/workspace/b").await);
        assert!(a == b || a == b + 1, "{a} {b}");
    }
    drop(output);
}

async fn removed(subject: Subject) {
    let origin = subject.start().await;
    origin.write("/workspace/file", "kept").await;
    let snapshot = take(&subject, &origin.id).await;
    let inside = made_of(&subject, &snapshot).await;
    subject.snapshots().remove(&snapshot).await.unwrap();
    subject.snapshots().remove(&snapshot).await.unwrap();
    assert_eq!(subject.snapshots().list().await.unwrap(), []);
    assert_eq!(inside.read("/workspace/file").await, b"kept");
    // It has not read this before.
    let again = take(&subject, &inside.id).await;
    assert_eq!(made_of(&subject, &again).await.read("/workspace/file").await, b"kept");
    let started = subject.provider().start(&subject.id(), &spec_of(&subject, &snapshot)).await;
    assert!(matches!(started, Err(Error::NotFound(_))), "{started:?}");
}

async fn absent(subject: Subject) {
    let taken = subject.snapshots().take(&subject.id(), &subject.snapshot_id()).await;
    assert!(matches!(taken, Err(Error::Gone)), "{taken:?}");
    assert_eq!(subject.snapshots().list().await.unwrap(), []);
    subject.snapshots().remove(&subject.snapshot_id()).await.unwrap();
}

async fn dropped(subject: Subject) {
    let origin = subject.start().await;
    origin.write("/workspace/large", noise(5_000_000)).await;
    for wait_us in [0, 100, 1000, 3000, 10_000] {
        let snapshot = subject.snapshot_id();
        let wait = std::time::Duration::from_micros(wait_us);
        let _ = tokio::time::timeout(wait, subject.snapshots().take(&origin.id, &snapshot)).await;
        subject.snapshots().remove(&snapshot).await.unwrap();
        let started = subject.provider().start(&subject.id(), &spec_of(&subject, &snapshot)).await;
        assert!(matches!(started, Err(Error::NotFound(_))), "{started:?}");
    }
    // The box is as it was, once the last of them has ended.
    subject.snapshots().take(&origin.id, &subject.snapshot_id()).await.expect("a snapshot is taken");
    let origin = subject.dial(origin.id).await;
    assert_eq!(origin.read("/workspace/large").await.len(), 5_000_000);
    let last = take(&subject, &origin.id).await;
    assert!(subject.snapshots().list().await.unwrap().contains(&last));
}

async fn reopened(subject: Subject) {
    let origin = subject.start().await;
    origin.write("/workspace/file", "kept").await;
    let snapshot = take(&subject, &origin.id).await;
    let second = subject.second().await;
    assert_eq!(second.snapshots().expect("it has them too").list().await.unwrap(), std::slice::from_ref(&snapshot));
    let id = subject.id();
    second.start(&id, &spec_of(&subject, &snapshot)).await.expect("a box starts");
    assert_eq!(subject.dial(id).await.read("/workspace/file").await, b"kept");
}

async fn paused(subject: Subject) {
    let origin = subject.start().await;
    origin.write("/workspace/file", "kept").await;
    subject.pauses().pause(&origin.id).await.unwrap();
    let snapshot = take(&subject, &origin.id).await;
    assert!(subject.pauses().paused().await.unwrap().contains(&origin.id), "it goes on");
    assert_eq!(made_of(&subject, &snapshot).await.read("/workspace/file").await, b"kept");
    subject.pauses().resume(&origin.id).await.unwrap();
    assert_eq!(subject.dial(origin.id).await.read("/workspace/file").await, b"kept");
}

async fn living(subject: Subject) {
    let mut origin = subject.start().await;
    let script = "cd /workspace; (while :; do echo on >> ticks; sleep 0.05; done) >/dev/null 2>&1 & echo $! > pid";
    origin.sh(script).await;
    let snapshot = take_of(&subject, &mut origin).await;
    let copies = [made_of(&subject, &snapshot).await, made_of(&subject, &snapshot).await];
    let goes_on = "cd /workspace; n=$(wc -l < ticks); i=0
        while [ $(wc -l < ticks) -le $n ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done; kill -0 $(cat pid) && echo $i";
    for inside in [&origin, &copies[0], &copies[1]] {
        let ran = inside.sh(goes_on).await;
        assert!(ran.text().trim().parse::<u32>().is_ok_and(|waits| waits < 100), "{ran:?}");
    }
    // Random numbers of the kernel are those of each box.
    let mut numbers = Vec::new();
    for inside in [&origin, &copies[0], &copies[1]] {
        numbers.push(inside.sh("head -c 16 /dev/urandom | od -An -tx1").await.text().to_owned());
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 3, "{numbers:?}");
    copies[0].sh("kill $(cat /workspace/pid)").await;
    assert_eq!(copies[1].sh("kill -0 $(cat /workspace/pid)").await.code(), 0);
    assert_eq!(origin.sh("kill -0 $(cat /workspace/pid)").await.code(), 0);
}

async fn imaged(subject: Subject) {
    /// Shows what the image says of its user, its folder and its environment.
    const SAYS: &str = "id -un; pwd; env | grep -v -e ^_= -e ^SHLVL= | sort";
    let spec = subject.full_image();
    let origin = subject.start_as(&spec).await;
    let said = origin.sh(SAYS).await;
    assert_eq!(said.code(), 0, "{said:?}");
    let first = take(&subject, &origin.id).await;
    let made = subject.start_as(&Spec { snapshot: Some(first), ..spec.clone() }).await;
    assert_eq!(made.sh(SAYS).await.text(), said.text());
    let second = take(&subject, &made.id).await;
    let chained = subject.start_as(&Spec { snapshot: Some(second), ..spec }).await;
    assert_eq!(chained.sh(SAYS).await.text(), said.text());
}

async fn told(subject: Subject) {
    let of_image = subject.start_as(&subject.full_image()).await;
    let snapshot = take(&subject, &of_image.id).await;
    let said = subject.snapshots().image_settings(&snapshot).await.expect("an image can be made of it");
    let workdir = said.defaults.workdir.unwrap_or_default();
    let shown = of_image.sh(&format!("test \"$(pwd)\" = '{workdir}' && env")).await;
    assert_eq!(shown.code(), 0, "{workdir}: {shown:?}");
    let shown = shown.text();
    assert!(!said.defaults.env.is_empty());
    for (key, value) in &said.defaults.env {
        assert!(shown.lines().any(|line| line == format!("{key}={value}")), "{key} in {shown}");
    }
    let mut archive = of_image.guest.whole_archive().await.expect("the root is packed");
    let mut tar = Vec::new();
    while let Some(part) = archive.next().await {
        tar.extend(part.expect("the archive is whole"));
    }
    let has = |name: &str| {
        tar.chunks_exact(512).any(|block| block.starts_with(name.as_bytes()) && block[257..262] == *b"ustar")
    };
    assert!(has("etc/") && has("srv/secret"), "what the image's user may not read is there too");
    assert!(!has(".tidebox") && !has("proc/") && !has("dev/"));
    let missing = subject.snapshots().image_settings(&subject.snapshot_id()).await;
    assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
}

async fn bounded(subject: Subject) {
    let mut spec = subject.spec();
    spec.resources.disk_mb = 32;
    let origin = subject.start_as(&spec).await;
    origin.write("/workspace/file", noise(20 << 20)).await;
    let snapshot = take(&subject, &origin.id).await;
    let inside = subject.start_as(&Spec { snapshot: Some(snapshot), ..spec }).await;
    assert!(inside.read("/workspace/file").await == noise(20 << 20));
    // What the snapshot has does not count, and what the box writes does.
    let within = inside.guest.write_file("/workspace/more", None, super::subject::pieces(&noise(20 << 20))).await;
    within.expect("there is room");
    let above = inside.guest.write_file("/workspace/most", None, super::subject::pieces(&noise(20 << 20))).await;
    assert!(matches!(above, Err(Error::NoSpace)), "{above:?}");
}

async fn copy_bounded(subject: Subject) {
    let mut spec = subject.spec();
    spec.resources.disk_mb = 32;
    let origin = subject.start_as(&spec).await;
    origin.write("/workspace/file", noise(20 << 20)).await;
    let snapshot = take(&subject, &origin.id).await;
    let copy = subject.start_as(&Spec { snapshot: Some(snapshot.clone()), is_copy: true, ..spec }).await;
    subject.snapshots().remove(&snapshot).await.expect("it is removed");
    assert!(copy.read("/workspace/file").await == noise(20 << 20));
    let above = copy.guest.write_file("/workspace/more", None, super::subject::pieces(&noise(20 << 20))).await;
    assert!(matches!(above, Err(Error::NoSpace)), "{above:?}");
    copy.write("/workspace/less", noise(4 << 20)).await;
}

async fn charged(subject: Subject) {
    const MANY: u64 = 20 << 20;
    let (mut inside, mut written) = (subject.start().await, 0);
    let usage = async |id: &SandboxId| subject.provider().disk_usage(id).await.expect("it is known").bytes;
    for round in 0..2 {
        inside.sh(&format!("head -c {MANY} /dev/urandom > /workspace/{round}; sync")).await;
        written += MANY;
        let snapshot = take(&subject, &inside.id).await;
        let copy = Spec { is_copy: true, ..spec_of(&subject, &snapshot) };
        let (next, other) = (subject.start_as(&copy).await, subject.start_as(&copy).await);
        subject.snapshots().remove(&snapshot).await.expect("it is removed");
        subject.provider().stop(&inside.id).await.expect("it is stopped");
        eventually("the copies are charged for all of it", async || {
            usage(&next.id).await + usage(&other.id).await >= written
        })
        .await;
        subject.provider().stop(&other.id).await.expect("it is stopped");
        eventually("the last copy is", async || usage(&next.id).await >= written).await;
        let held = subject.snapshots().held_bytes(&next.id).await.expect("it is known");
        assert_eq!(held, subject.snapshots().left_bytes().await.expect("it is known"), "it is the only box");
        inside = next;
    }
}

async fn deep(subject: Subject) {
    let mut origin = subject.start().await;
    let made = origin.sh("cd /workspace; i=0; while [ $i -lt 1500 ]; do mkdir d && cd -P d; i=$((i+1)); done").await;
    assert_eq!(made.code(), 0, "{}", String::from_utf8_lossy(&made.stderr));
    let taken = soon("an answer", subject.snapshots().take(&origin.id, &subject.snapshot_id())).await;
    match taken {
        Ok(_) => {}
        Err(Error::Invalid(message)) => {
            assert!(message.contains("nested"), "{message}");
            assert_eq!(subject.snapshots().list().await.unwrap(), []);
        }
        Err(error) => panic!("{error:?}"),
    }
    origin = subject.dial(origin.id).await;
    assert_eq!(origin.sh("echo here").await.text(), "here\n");
}
