//! Images of the Engine: their run settings, and pulls.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker as Client;
use bollard::auth::DockerCredentials;
use bollard::errors::Error as ClientError;
use bollard::models::ImageInspect;
use bollard::query_parameters::CreateImageOptionsBuilder;
use domain::Asker;
use futures_util::StreamExt;
use guest_protocol::Defaults;
use images::desk::{Begun, Desk, Interest, Origin, Wanted};
use images::{Login, Logins, Name, PULL_WAIT_MAX, PullPolicy, Run, is_digest, is_docker_hub};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::config::DockerConfig;
use super::engine::own_arch;
use super::fault;
use super::labels::REGISTRY;
use crate::{Error, Result, Spec};

/// Key of Docker's own registry in logins.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// Image that the Engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image {
    /// Id on the Engine: a name may point to another image at any time.
    pub(super) id: String,
    pub(super) run: Run,
    /// Bytes of all its layers.
    pub(super) size_bytes: u64,
    pub(super) labels: HashMap<String, String>,
}

impl Image {
    /// Returns the image if it can run the box of `spec`, and the refusal otherwise.
    pub(super) fn checked(self, spec: &Spec) -> Result<Image> {
        self.run.check(&spec.image, spec.entrypoint)?;
        Ok(self)
    }
}

/// Parses a name into its full form. A bad name is refused before it becomes part of a path.
pub(super) fn name_of(name: &str) -> Result<Name> {
    if name == "host" {
        return Err(Error::Invalid(
            "the provider docker has no image `host`; native and proot have it. Use an image such as \
             `debian:stable-slim`"
                .to_owned(),
        ));
    }
    if is_digest(name) {
        return Err(Error::Invalid(format!(
            "the provider docker accepts a digest only after the name of its repository: write `NAME@{name}`"
        )));
    }
    let parsed = Name::parse(name)?;
    if parsed.registry() == REGISTRY {
        return Err(Error::Invalid(format!("`{name}` is a snapshot; set `snapshot` to its id and leave out `image`")));
    }
    Ok(parsed)
}

/// Error of a failed pull, cloned for every caller that waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Refused {
    Invalid(String),
    NoImage(String),
    NoEngine(String),
    Full(String),
    Failed(String),
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        match refused {
            Refused::Invalid(text) => Error::Invalid(text),
            Refused::NoImage(text) => Error::NoImage(text),
            Refused::NoEngine(text) => Error::Unavailable(text),
            Refused::Full(text) => Error::Full(text),
            Refused::Failed(text) => Error::failed("pull an image", text),
        }
    }
}

type Outcome = watch::Receiver<Option<Result<(), Refused>>>;

/// Images of one Engine, with its running pulls.
#[derive(Debug, Default)]
pub(super) struct Images {
    desk: Arc<Desk<Outcome>>,
}

impl Images {
    /// Returns the image `name`, pulled as the configuration says.
    pub(super) async fn take(
        self: &Arc<Self>,
        client: &Client,
        config: &DockerConfig,
        tasks: &TaskTracker,
        name: &str,
        asker: Option<Asker>,
    ) -> Result<Image> {
        let parsed = name_of(name)?;
        let full = parsed.to_string();
        let name = full.as_str();
        if config.pull != PullPolicy::Always
            && let Some(image) = inspect(client, name).await?
        {
            return Ok(image);
        }
        if config.pull == PullPolicy::Never {
            return Err(Error::Invalid(format!(
                "the Docker Engine has no image `{name}`, and providers.docker.pull is never; pull it there first \
                 (`docker pull {name}`)"
            )));
        }
        parsed.check_allowed(&config.allowed_registries)?;
        let (mut outcome, _interest) = self.pull(client, config, tasks, &parsed, asker).await?;
        let ended = async { outcome.wait_for(Option::is_some).await.map(|ended| ended.clone()) };
        match tokio::time::timeout(config.pull_timeout, ended).await {
            Ok(Ok(ended)) => ended.unwrap_or(Ok(()))?,
            Ok(Err(_)) => return Err(Error::failed("pull an image", "the pull was cancelled")),
            Err(_) => return Err(Error::NoImage(late(name, config.pull_timeout))),
        }
        let pulled = inspect(client, name).await?;
        pulled.ok_or_else(|| Error::failed("pull an image", format!("the Engine has no image {name} after its pull")))
    }

    /// Joins the pull of `name`, or begins one. A pull goes on when all callers have left, until
    /// another needs its place.
    async fn pull(
        &self,
        client: &Client,
        config: &DockerConfig,
        tasks: &TaskTracker,
        name: &Name,
        asker: Option<Asker>,
    ) -> Result<(Outcome, Interest)> {
        let full = name.to_string();
        if let Some(joined) = self.desk.join(&full) {
            return Ok(joined);
        }
        let (tell, outcome) = watch::channel(None);
        let stop = CancellationToken::new();
        let origin = Origin::of(name).await;
        let watched = outcome.clone();
        let wanted = Wanted { name: &full, asker, origin, is_bounded: true, stop: stop.clone(), watched };
        let (place, interest) = match self.desk.begin(wanted)? {
            Begun::Joined(outcome, interest) => return Ok((outcome, interest)),
            Begun::New(place, interest) => (place, interest),
        };
        let client = client.clone();
        let config = config.clone();
        tasks.spawn(async move {
            // Dropping the request ends the Engine's own pull.
            let pulled = tokio::select! {
                pulled = tokio::time::timeout(PULL_WAIT_MAX, pull(&client, &config, &full)) => {
                    pulled.unwrap_or_else(|_| Err(Refused::NoImage(given_up(&full))))
                }
                () = stop.cancelled() => {
                    Err(Refused::NoImage(format!("the pull of `{full}` was cancelled in favor of others; try again")))
                }
            };
            drop(place);
            tell.send_replace(Some(pulled));
        });
        Ok((outcome, interest))
    }
}

fn late(name: &str, waited: Duration) -> String {
    format!("the image `{name}` was not pulled within {} s; the pull continues, so try again later", waited.as_secs())
}

fn given_up(name: &str) -> String {
    format!(
        "the image `{name}` was not pulled within {} hours, and the pull was cancelled",
        PULL_WAIT_MAX.as_secs() / 3600
    )
}

async fn pull(client: &Client, config: &DockerConfig, name: &str) -> Result<(), Refused> {
    let parsed = Name::parse(name).map_err(not_asked)?;
    let registry = parsed.registry().to_owned();
    let logins = Logins::new(config.registries.clone(), config.docker_config.clone());
    let credentials = logins.find(&registry).await.map_err(not_asked)?.map(|login| credentials(&registry, &login));
    let had_login = credentials.is_some();
    let repository = format!("{registry}/{}", parsed.repository());
    let options = CreateImageOptionsBuilder::default().from_image(&repository).tag(parsed.version()).build();
    let mut progress = std::pin::pin!(client.create_image(Some(options), None, credentials));
    while let Some(step) = progress.next().await {
        if let Err(error) = step {
            let said: String = error.to_string().chars().take(fault::SAID_CHARS_MAX).collect();
            tracing::info!(image = name, error = ?said, "the Engine could not pull an image");
            return Err(refused(name, &registry, had_login, error));
        }
    }
    Ok(())
}

/// Converts an error from before the Engine is asked for a pull.
fn not_asked(error: images::Error) -> Refused {
    if let images::Error::Invalid(text) = error { Refused::Invalid(text) } else { Refused::Failed(error.to_string()) }
}

/// Returns a login in the form that the Engine takes.
fn credentials(registry: &str, login: &Login) -> DockerCredentials {
    let serveraddress = if is_docker_hub(registry) { DOCKER_HUB_KEY } else { registry };
    let empty = DockerCredentials { serveraddress: Some(serveraddress.to_owned()), ..DockerCredentials::default() };
    match login {
        Login::Password { username, password } => {
            DockerCredentials { username: Some(username.clone()), password: exposed(password), ..empty }
        }
        Login::Identity(token) => DockerCredentials { identitytoken: exposed(token), ..empty },
        Login::Bearer(token) => DockerCredentials { registrytoken: exposed(token), ..empty },
    }
}

fn exposed(secret: &SecretString) -> Option<String> {
    Some(secret.expose_secret().to_owned())
}

fn refused(name: &str, registry: &str, had_login: bool, error: ClientError) -> Refused {
    if fault::is_unreachable(&error) {
        return Refused::NoEngine(fault::unreachable(&error));
    }
    let streamed = if let ClientError::DockerStreamError { error } = &error { Some(error.clone()) } else { None };
    let text = streamed
        .or_else(|| fault::refusal(&error).map(|(_, message)| message.to_owned()))
        .unwrap_or_else(|| error.to_string());
    if fault::is_full(&text) {
        return Refused::Full(fault::FULL.to_owned());
    }
    if says(&text, &["no matching manifest", "does not match the specified platform"]) {
        return Refused::Invalid(format!(
            "the image `{name}` is not available for linux/{}, which boxes here run",
            own_arch()
        ));
    }
    if says(
        &text,
        &["verification failed", "failed to register layer: invalid", "unexpected commit digest", "gzip: invalid"],
    ) {
        return Refused::Invalid(format!(
            "the registry {registry} sent a different layer of `{name}` than requested; the image there is broken: \
             push it again"
        ));
    }
    if says(&text, &["max depth exceeded"]) {
        return Refused::Invalid(format!(
            "the image `{name}` has more layers than this Docker Engine can stack; build it with fewer"
        ));
    }
    if says(&text, &["incorrect username or password"]) || had_login && says(&text, &["unauthorized", "denied"]) {
        return Refused::Invalid(format!(
            "the registry {registry} rejects the login for `{name}`; check its name and password under \
             images.registries, or docker's config.json"
        ));
    }
    if says(&text, &["no basic auth credentials", "unauthorized", "authentication required"]) {
        return Refused::Invalid(format!(
            "the registry {registry} requires a login for `{name}`; add one under images.registries"
        ));
    }
    if says(&text, &["pull access denied", "repository does not exist"]) {
        return Refused::Invalid(format!(
            "the registry {registry} has no image `{name}`, or requires a login for it; check the name"
        ));
    }
    if says(&text, &["not found", "manifest unknown", "name unknown", "invalid reference format"]) {
        return Refused::Invalid(format!("the registry {registry} has no image `{name}`; check its name and tag"));
    }
    // The Engine's own text names its resolver and repeats a registry's answer, at any length.
    let passing: [(&[&str], &str); 5] = [
        (&["connection refused"], "it refuses connections"),
        (&["no such host", "server misbehaving", "Temporary failure"], "its address is not found"),
        (&["toomanyrequests"], "it received too many requests"),
        (&["timeout", "deadline exceeded", "Client.Timeout", "unreachable"], "it does not answer"),
        (&["EOF", "connection reset", "received unexpected HTTP status: 5"], "it failed"),
    ];
    if let Some((_, why)) = passing.iter().find(|(words, _)| says(&text, words)) {
        return Refused::NoImage(format!(
            "the registry {registry} did not serve the image `{name}`: {why}; try again later"
        ));
    }
    Refused::Failed("the Engine could not pull it; see the log for its message".to_owned())
}

/// Returns whether a message has one of these texts in it.
fn says(message: &str, texts: &[&str]) -> bool {
    texts.iter().any(|text| message.contains(text))
}

/// Returns the Engine's image of this name; `None` if it has none.
pub(super) async fn inspect(client: &Client, name: &str) -> Result<Option<Image>> {
    match fault::within(fault::LOOK_WAIT, client.inspect_image(name)).await {
        Ok(inspected) => read(name, inspected).map(Some),
        Err(error) if fault::status(&error) == Some(404) => Ok(None),
        Err(error) => Err(fault::failed("inspect an image", error)),
    }
}

fn read(name: &str, inspected: ImageInspect) -> Result<Image> {
    let os = inspected.os.unwrap_or_default();
    let arch = inspected.architecture.unwrap_or_default();
    // An imported image may have neither.
    if !matches!(os.as_str(), "linux" | "") || !arch.is_empty() && arch != own_arch() {
        return Err(Error::Invalid(format!(
            "the image `{name}` is for {os}/{arch}, but boxes here run linux/{}; name an image for linux/{0}",
            own_arch()
        )));
    }
    let Some(id) = inspected.id else { return Err(Error::failed("inspect an image", "it has no id")) };
    let config = inspected.config.unwrap_or_default();
    let pairs = config.env.unwrap_or_default();
    let env: BTreeMap<String, String> = pairs
        .iter()
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let workdir = config.working_dir.filter(|dir| dir.starts_with('/') && dir != "/");
    let user = config.user.filter(|user| !matches!(user.as_str(), "" | "root" | "0" | "0:0" | "root:root"));
    let entrypoint = config.entrypoint.into_iter().chain(config.cmd).flatten().collect();
    let run = Run { defaults: Defaults { env, workdir, user }, entrypoint };
    let size_bytes = inspected.size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
    Ok(Image { id, run, size_bytes, labels: config.labels.unwrap_or_default() })
}

#[cfg(test)]
mod test {
    use super::super::transport::Endpoint;
    use super::*;
    use images::desk::PULLS_MAX;

    #[test]
    fn what_would_be_another_path_of_the_engine_is_no_name() {
        for name in ["", "../containers/x", "a/../../b", "/a", "a//b", "a b", "a?b", "a#b", "a%2fb", "-a", "a:", "a\n"]
        {
            assert!(matches!(name_of(name), Err(Error::Invalid(_))), "{name:?}");
        }
        let host = name_of("host").unwrap_err().to_string();
        assert!(host.contains("native") && host.contains("proot"), "{host}");
    }

    #[test]
    fn a_digest_alone_is_told_how_docker_takes_one() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let refused = name_of(&digest).unwrap_err().to_string();
        assert!(refused.contains(&format!("`NAME@{digest}`")), "{refused}");
        name_of(&format!("r.example/app@{digest}")).unwrap();
    }

    #[tokio::test]
    async fn no_more_than_so_many_images_are_pulled_at_once() {
        let images = Arc::new(Images::default());
        let tasks = TaskTracker::new();
        let socket = "unix:///nowhere/docker.sock".to_owned();
        let config = DockerConfig { socket, ..DockerConfig::new(domain::StoreId::from_entropy([1; 10])) };
        let client = Endpoint::find(&config).unwrap().client(&tasks).unwrap();
        let mut pulls = Vec::new();
        for number in 0..PULLS_MAX {
            let name = Name::parse(&format!("127.0.0.1:{}/image-{number}", number + 1)).unwrap();
            pulls.push(images.pull(&client, &config, &tasks, &name, None).await.unwrap());
        }
        // No task has run yet, since the test has not yielded.
        let refused = images.pull(&client, &config, &tasks, &name_of("127.0.0.1:99/another").unwrap(), None).await;
        let refused = refused.unwrap_err();
        assert!(matches!(&refused, Error::NoImage(text) if text.contains("64 images")), "{refused}");
        assert!(
            images.pull(&client, &config, &tasks, &name_of("127.0.0.1:4/image-3").unwrap(), None).await.is_ok(),
            "who waits for one that is under way joins it"
        );
    }

    #[test]
    fn logins_are_written_as_engines_take_them() {
        let password = Login::Password { username: "ann".to_owned(), password: "secret".into() };
        let written = credentials("docker.io", &password);
        assert_eq!(written.serveraddress.as_deref(), Some(DOCKER_HUB_KEY));
        assert_eq!((written.username.as_deref(), written.password.as_deref()), (Some("ann"), Some("secret")));
        assert_eq!(credentials("r.example", &Login::Identity("token".into())).identitytoken.as_deref(), Some("token"));
    }

    #[test]
    fn an_image_for_another_machine_is_refused() {
        let other = ImageInspect {
            architecture: Some("s390x".to_owned()),
            os: Some("linux".to_owned()),
            ..ImageInspect::default()
        };
        let refused = read("app", other).unwrap_err();
        assert!(matches!(&refused, Error::Invalid(text) if text.contains("s390x")), "{refused}");
    }

    #[test]
    fn refusals_of_registries_are_told_apart() {
        let said = |text: &str, had_login: bool| {
            let error = ClientError::DockerStreamError { error: text.to_owned() };
            refused("r.example/app:1", "r.example", had_login, error)
        };
        for text in ["manifest for r.example/app:1 not found: manifest unknown", "pull access denied for app"] {
            assert!(matches!(said(text, false), Refused::Invalid(_)), "{text}");
        }
        let asks = said("Get \"https://r.example/v2/\": no basic auth credentials", false);
        assert!(matches!(&asks, Refused::Invalid(text) if text.contains("requires a login")), "{asks:?}");
        let wrong = said("unauthorized: authentication required", true);
        assert!(matches!(&wrong, Refused::Invalid(text) if text.contains("rejects the login")), "{wrong:?}");
        let long = format!("toomanyrequests: \u{1b}[31m{}", "x".repeat(300_000));
        for text in [
            "dial tcp 127.0.0.1:1: connect: connection refused",
            "net/http: TLS handshake timeout",
            &long,
            "dial udp 10.0.0.1:53: no such host",
        ] {
            let Refused::NoImage(told) = said(text, false) else { panic!("{}", &text[..40]) };
            assert!(told.len() < 200 && !told.contains('\u{1b}') && !told.contains("10.0.0.1"), "{told:?}");
        }
        assert!(matches!(said("x".repeat(300_000).as_str(), false), Refused::Failed(text) if text.len() < 100));
        let damaged = said("filesystem layer verification failed for digest sha256:ab", false);
        assert!(matches!(&damaged, Refused::Invalid(text) if text.contains("a different layer")), "{damaged:?}");
        let deep = said("failed to register layer: max depth exceeded", false);
        assert!(matches!(&deep, Refused::Invalid(text) if text.contains("layers")), "{deep:?}");
        assert!(matches!(said("write /x: no space left on device", false), Refused::Full(_)));
    }
}
