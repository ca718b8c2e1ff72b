//! Variables by which programs find the proxy.

/// Hosts that are reached without the proxy: the box itself.
const DIRECT: &str = "localhost,127.0.0.1,::1,0.0.0.0,[::1],127.0.0.0/8";

/// Returns the variables for a proxy at this port of the loopback.
pub(super) fn variables(port: u16, password: Option<&str>) -> Vec<(&'static str, String)> {
    let user = password.map(|password| format!("{}:{password}@", super::proxy::USER)).unwrap_or_default();
    let url = format!("http://{user}127.0.0.1:{port}");
    // Programs differ in which spelling they read. HTTP and not SOCKS for all: a client of SOCKS is an
    // extra package in many languages.
    let urls = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    // Yarn reads none of the above since version 2.
    let urls = urls.into_iter().chain(["YARN_HTTP_PROXY", "YARN_HTTPS_PROXY"]);
    let mut variables: Vec<_> = urls.map(|name| (name, url.clone())).collect();
    variables.extend(["NO_PROXY", "no_proxy"].map(|name| (name, DIRECT.to_owned())));
    variables.push(("NODE_USE_ENV_PROXY", "1".to_owned()));
    // Java programs show their options to all users of a host, so none of them may hold a password.
    if password.is_none() {
        let java: String = ["http", "https"]
            .map(|scheme| format!("-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort={port}"))
            .join(" ");
        // From 3.9 on Maven does not look at these by itself; the second is the name since 4.
        let maven =
            ["connector.http", "transport.apache"].map(|part| format!("-Daether.{part}.useSystemProperties=true"));
        variables.push(("MAVEN_OPTS", format!("{java} {}", maven.join(" "))));
        variables.push(("GRADLE_OPTS", java));
    }
    variables
}

#[cfg(test)]
mod test {
    use super::variables;

    #[test]
    fn both_spellings_are_set_and_a_password_is_in_no_option_of_java() {
        let open = variables(7424, None);
        for name in ["HTTP_PROXY", "https_proxy", "ALL_PROXY"] {
            assert!(open.contains(&(name, "http://127.0.0.1:7424".to_owned())), "{name}");
        }
        assert!(open.iter().any(|(name, value)| *name == "GRADLE_OPTS" && value.contains("proxyPort=7424")));
        let closed = variables(40_001, Some("secret"));
        assert!(closed.contains(&("http_proxy", "http://tidebox:secret@127.0.0.1:40001".to_owned())));
        assert!(closed.iter().all(|(name, _)| !name.ends_with("_OPTS")));
    }
}
