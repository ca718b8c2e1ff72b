use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;
use crate::identity::OwnerId;

fn targets(texts: &[&str]) -> Targets {
    texts.iter().map(|text| Target::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))).collect()
}

fn policy(mode: EgressMode, allow: &[&str], deny: &[&str]) -> EgressRules {
    EgressRules { mode, allow: targets(allow), deny: targets(deny) }
}

fn host(text: &str) -> Host {
    Host::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn to(address: IpAddr, port: u16) -> Dialled {
    Dialled { address, port, is_own: false, is_server_port: false }
}

fn dialled(text: &str, port: u16) -> Dialled {
    to(address(text), port)
}

#[test]
fn a_host_is_a_name_or_an_address_and_nothing_that_only_a_resolver_takes_for_one() {
    for (text, same) in [("Example.COM", "example.com"), ("example.com.", "example.com"), ("a_b.c-d.x", "a_b.c-d.x")] {
        assert_eq!(Host::parse(text), Ok(Host::Name(same.to_owned())));
    }
    for text in ["127.0.0.1", "::ffff:127.0.0.1", "[::ffff:7f00:1]"] {
        assert_eq!(Host::parse(text), Ok(Host::Address(Ipv4Addr::LOCALHOST.into())), "{text}");
    }
    assert_eq!(Host::parse("[::1]"), Ok(Host::Address(Ipv6Addr::LOCALHOST.into())));
    let (long, label) = (format!("{}a", "ab.".repeat(84) + "ab"), "a".repeat(64));
    for (text, fault) in [
        ("", HostError::Empty),
        (".", HostError::Empty),
        ("a..b", HostError::Empty),
        ("example.com..", HostError::Empty),
        (&*long, HostError::Long),
        (&*label, HostError::Long),
        ("exämple.com", HostError::Character),
        ("a b", HostError::Character),
        ("*.example.com", HostError::Character),
        ("[example.com]", HostError::Character),
        ("a\0b", HostError::Character),
        ("fe80::1%eth0", HostError::Zone),
        ("[fe80::1%25eth0]", HostError::Zone),
        ("2130706433", HostError::Number),
        ("0x7f000001", HostError::Number),
        ("0", HostError::Number),
        ("127.1", HostError::Number),
        ("0177.0.0.01", HostError::Number),
        ("127.0.0.0x1", HostError::Number),
        ("example.com.1", HostError::Number),
    ] {
        assert_eq!(Host::parse(text), Err(fault), "{text}");
    }
}

#[test]
fn a_target_is_a_name_a_wildcard_or_a_network_with_or_without_a_port() {
    for (target, has, lacks) in [
        ("pypi.example:443", ("PyPI.example.", 443), ("pypi.example", 80)),
        ("pypi.example", ("pypi.example", 1), ("files.pypi.example", 443)),
        ("*.example.net", ("a.b.example.net", 80), ("example.net", 80)),
        ("*.example.net:80", ("a.example.net", 80), ("badexample.net", 80)),
        ("10.0.0.0/8:5432", ("10.9.8.7", 5432), ("11.0.0.0", 5432)),
        ("192.0.2.7:22", ("192.0.2.7", 22), ("192.0.2.8", 22)),
        ("2001:db8::/32", ("[2001:db8:1::1]", 9), ("2001:db9::", 9)),
        ("[2001:db8::1]:443", ("2001:db8::1", 443), ("2001:db8::1", 80)),
        ("0.0.0.0/0", ("1.2.3.4", 80), ("::1", 80)),
        ("::/0", ("2001:db8::1", 80), ("1.2.3.4", 80)),
    ] {
        let targets = targets(&[target]);
        assert!(targets.has_host(&host(has.0), has.1), "{target} has {has:?}");
        assert!(!targets.has_host(&host(lacks.0), lacks.1), "{target} lacks {lacks:?}");
    }
    for (text, fault) in [
        ("*", TargetError::Wildcard),
        ("*.com", TargetError::Wildcard),
        ("*.127.0.0.1", TargetError::Wildcard),
        ("a.*.b", TargetError::Wildcard),
        ("*a.example.com", TargetError::Wildcard),
        ("*.*.example.com", TargetError::Host(HostError::Character)),
        ("example.com:0", TargetError::Port),
        ("example.com:", TargetError::Port),
        ("example.com:65536", TargetError::Port),
        ("example.com:+1", TargetError::Port),
        ("example.com:http", TargetError::Port),
        ("10.0.0.0/33", TargetError::Network),
        ("10.0.0.0/+8", TargetError::Network),
        ("10.0.0.0/", TargetError::Network),
        ("example.com/8", TargetError::Network),
        ("10.0.0.0/8/8", TargetError::Network),
        ("", TargetError::Host(HostError::Empty)),
    ] {
        assert_eq!(Target::parse(text), Err(fault), "{text}");
    }
}

#[test]
fn addresses_that_are_not_of_the_internet_are_known_in_every_form() {
    use SpecialAddress as Kind;
    for (text, kind) in [
        ("0.0.0.0", Kind::Unspecified),
        ("0.1.2.3", Kind::Unspecified),
        ("::", Kind::Unspecified),
        ("127.0.0.1", Kind::Loopback),
        ("127.255.255.254", Kind::Loopback),
        ("::1", Kind::Loopback),
        ("::ffff:127.0.0.1", Kind::Loopback),
        ("64:ff9b::7f00:1", Kind::Loopback),
        ("2002:7f00:1::", Kind::Loopback),
        ("169.254.169.254", Kind::LinkLocal),
        ("::ffff:169.254.169.254", Kind::LinkLocal),
        ("64:ff9b::a9fe:a9fe", Kind::LinkLocal),
        ("fe80::1", Kind::LinkLocal),
        ("10.0.0.1", Kind::Private),
        ("172.16.0.1", Kind::Private),
        ("172.31.255.255", Kind::Private),
        ("192.168.1.1", Kind::Private),
        ("100.64.0.1", Kind::Private),
        ("fd00:ec2::254", Kind::Private),
        ("fec0::1", Kind::Private),
        ("64:ff9b:1::1", Kind::Private),
        ("2002:a00:1::1", Kind::Private),
        ("2606:4700::5efe:a00:1", Kind::Private),
        ("2606:4700::200:5efe:a9fe:a9fe", Kind::LinkLocal),
        ("224.0.0.1", Kind::Multicast),
        ("255.255.255.255", Kind::Multicast),
        ("ff02::1", Kind::Multicast),
        ("192.0.2.1", Kind::Reserved),
        ("198.18.0.1", Kind::Reserved),
        ("240.0.0.1", Kind::Reserved),
        ("::127.0.0.1", Kind::Reserved),
        ("2001:db8::1", Kind::Reserved),
        ("2001:0:1::1", Kind::Reserved),
        ("100::1", Kind::Reserved),
        ("4000::1", Kind::Reserved),
    ] {
        assert_eq!(special(address(text)), Some(kind), "{text}");
    }
    for text in
        ["1.1.1.1", "172.15.0.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101", "2002:101:101::1"]
    {
        assert_eq!(special(address(text)), None, "{text}");
    }
}

/// Forms of 198.41.0.4 in addresses of IPv6, and whether its host is the one that they reach.
const FORMS: [(&str, bool); 13] = [
    ("::ffff:198.41.0.4", true),
    ("64:ff9b::c629:4", true),
    ("64:ff9b:1:c629:0:400::", false),
    ("64:ff9b:1:c6:29:4::", false),
    ("64:ff9b:1:0:c6:2900:400:0", false),
    ("64:ff9b:1::c629:4", false),
    ("2002:c629:4::1", false),
    ("2001:0:c629:4::", false),
    ("2001:0:101:101::39d6:fffb", false),
    ("::198.41.0.4", false),
    ("::ffff:0:198.41.0.4", false),
    ("2606:4700::5efe:c629:4", false),
    ("2606:4700::200:5efe:c629:4", false),
];

#[test]
fn a_deny_list_holds_for_an_address_in_every_form() {
    for (form, is_same) in FORMS {
        for denied in ["198.41.0.4", "198.41.0.0/16", "::ffff:198.41.0.4", "64:ff9b::c629:4", "64:ff9b::c629:0/112"] {
            let rules = policy(EgressMode::Open, &[], &[denied]);
            assert_eq!(decide_host(&[&rules], &host(form), 443), Err(EgressDenial::Denied), "{form} {denied}");
            // A name whose record AAAA has the form.
            let decided = decide_address(&[&rules], &Targets::default(), &host("a.example"), dialled(form, 443));
            assert_eq!(decided, Err(EgressDenial::Denied), "{form} {denied}");
            assert_eq!(decide_host(&[&rules], &host("198.41.0.4"), 443), Err(EgressDenial::Denied), "{denied}");
        }
        let allowing = policy(EgressMode::AllowList, &["198.41.0.4"], &[]);
        assert_eq!(decide_host(&[&allowing], &host(form), 443).is_ok(), is_same, "{form}");
    }
    for other in ["64:ff9b::c629:5", "2002:c629:5::1", "2606:4700::c629:4"] {
        let rules = policy(EgressMode::Open, &[], &["198.41.0.4"]);
        assert_eq!(decide_host(&[&rules], &host(other), 443), Ok(()), "{other}");
    }
    let raw = policy(EgressMode::Open, &[], &["64:ff9b::/64", "2002::/16"]);
    for form in ["64:ff9b::c629:4", "2002:c629:4::1"] {
        assert_eq!(decide_host(&[&raw], &host(form), 443), Err(EgressDenial::Denied), "{form}");
    }
}

#[test]
fn a_name_is_decided_again_on_each_address() {
    let none = Targets::default();
    let open = policy(EgressMode::Open, &[], &["*.bad.example"]);
    let decide = |text: &str, at: &str| decide_address(&[&open], &none, &host(text), dialled(at, 443));
    assert_eq!(decide("good.example", "1.1.1.1"), Ok(()));
    assert_eq!(decide("a.bad.example", "1.1.1.1"), Err(EgressDenial::Denied));
    // The name resolves to an address of the host's own network.
    assert_eq!(decide("good.example", "127.0.0.1"), Err(EgressDenial::Special(SpecialAddress::Loopback)));
    assert_eq!(decide("good.example", "::ffff:169.254.169.254"), Err(EgressDenial::Special(SpecialAddress::LinkLocal)));
    let list = policy(EgressMode::AllowList, &["db.example:5432", "10.0.0.0/8:5432"], &["10.0.0.1"]);
    let named = targets(&["10.0.0.0/8"]);
    let decide = |text: &str, at: &str, port| decide_address(&[&list], &named, &host(text), dialled(at, port));
    assert_eq!(decide("db.example", "10.1.1.1", 5432), Ok(()));
    assert_eq!(decide("other.example", "10.1.1.1", 5432), Ok(()), "by the network");
    assert_eq!(decide("db.example", "10.0.0.1", 5432), Err(EgressDenial::Denied));
    assert_eq!(decide("db.example", "10.1.1.1", 22), Err(EgressDenial::NotAllowed));
    assert_eq!(decide("db.example", "192.168.0.1", 5432), Err(EgressDenial::Special(SpecialAddress::Private)));
}

#[test]
fn without_a_policy_nothing_is_reached() {
    let (name, none) = (host("example.com"), Targets::default());
    assert_eq!(decide_host(&[], &name, 443), Err(EgressDenial::NoNetwork));
    assert_eq!(decide_address(&[], &none, &name, dialled("1.1.1.1", 443)), Err(EgressDenial::NoNetwork));
    let default = EgressRules::default();
    assert_eq!(decide_host(&[&default], &name, 443), Err(EgressDenial::NoNetwork));
}

#[test]
fn a_caller_does_not_open_what_only_the_operator_can() {
    let asked = policy(EgressMode::AllowList, &["127.0.0.1", "10.0.0.0/8"], &[]);
    for at in ["127.0.0.1", "10.0.0.1"] {
        let denied = decide_address(&[&asked], &Targets::default(), &host(at), dialled(at, 80));
        assert!(matches!(denied, Err(EgressDenial::Special(_))), "{at}: {denied:?}");
        assert_eq!(decide_address(&[&asked], &targets(&[at]), &host(at), dialled(at, 80)), Ok(()));
    }
}

#[test]
fn the_hosts_own_addresses_and_the_servers_port_are_reached_only_by_name() {
    let open = policy(EgressMode::Open, &[], &[]);
    let decide = |internal: &[&str], is_server_port| {
        let dialled = Dialled { is_own: true, is_server_port, ..dialled("1.2.3.4", 7423) };
        decide_address(&[&open], &targets(internal), &host("me.example"), dialled)
    };
    assert_eq!(decide(&[], false), Err(EgressDenial::Special(SpecialAddress::Own)));
    assert_eq!(decide(&["1.2.3.4"], false), Ok(()));
    assert_eq!(decide(&["1.2.3.4"], true), Err(EgressDenial::Special(SpecialAddress::Server)));
    assert_eq!(decide(&["0.0.0.0/0"], true), Err(EgressDenial::Special(SpecialAddress::Server)));
    assert_eq!(decide(&["1.2.3.4:7423"], true), Ok(()));
}

fn entries(texts: &[&str]) -> Vec<EgressEntry> {
    texts.iter().map(|text| EgressEntry::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))).collect()
}

#[test]
fn a_list_is_looked_up_and_one_that_is_missing_closes_the_policy() {
    let lists = EgressLists::from([("packages".to_owned(), vec![Target::parse("pypi.example:443").unwrap()])]);
    let asked = EgressPolicy {
        mode: EgressMode::AllowList,
        allow: entries(&["@packages", "a.example"]),
        deny: entries(&["b.example"]),
        ..EgressPolicy::default()
    };
    assert_eq!(asked.check(&lists), Ok(()));
    let rules = asked.rules(&lists);
    assert_eq!(decide_host(&[&rules], &host("pypi.example"), 443), Ok(()));
    assert_eq!(decide_host(&[&rules], &host("pypi.example"), 80), Err(EgressDenial::NotAllowed));
    assert_eq!(decide_host(&[&rules], &host("a.example"), 80), Ok(()));
    let none = EgressLists::new();
    assert_eq!(asked.check(&none), Err(InvalidEgress::UnknownList("packages".to_owned())));
    assert_eq!(decide_host(&[&asked.rules(&none)], &host("a.example"), 80), Err(EgressDenial::NoNetwork));
    // A list of what is denied, too: without it the policy would be wider.
    let open = EgressPolicy { mode: EgressMode::Open, deny: entries(&["@packages"]), ..EgressPolicy::default() };
    assert_eq!(decide_host(&[&open.rules(&none)], &host("a.example"), 80), Err(EgressDenial::NoNetwork));
}

#[test]
fn a_policy_that_is_too_long_or_has_useless_entries_is_refused() {
    let lists = EgressLists::new();
    let of = |mode, count: usize| EgressPolicy {
        mode,
        allow: entries(&vec!["a.example"; count]),
        ..EgressPolicy::default()
    };
    assert_eq!(of(EgressMode::AllowList, 1000).check(&lists), Ok(()));
    assert_eq!(of(EgressMode::AllowList, 10_000).check(&lists), Err(InvalidEgress::Long(10_000)));
    assert_eq!(of(EgressMode::Open, 1).check(&lists), Err(InvalidEgress::UselessAllow("open")));
    assert_eq!(of(EgressMode::None, 1).check(&lists), Err(InvalidEgress::UselessAllow("none")));
    assert_eq!(EgressEntry::parse(&format!("{}b:80", "a.".repeat(125))), Err(EntryError::Long));
    assert!(EgressEntry::parse(&format!("{}b:80", "a.".repeat(124))).is_ok());
    for text in ["@", "@a b", "@a/b", &*format!("@{}", "a".repeat(65))] {
        assert_eq!(EgressEntry::parse(text), Err(EntryError::List), "{text}");
    }
}

#[test]
fn what_is_written_is_read_back() {
    for text in [
        "pypi.example:443",
        "*.example.net",
        "10.0.0.0/8:5432",
        "192.0.2.7",
        "2001:db8::/32",
        "2001:db8::/32:53",
        "[2001:db8::1]:443",
        "@packages",
    ] {
        assert_eq!(EgressEntry::parse(text).unwrap().to_string(), text);
    }
    for mode in EgressMode::ALL {
        assert_eq!(EgressMode::parse(mode.as_str()), Some(mode));
    }
}

fn any_target() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a.example", "b.example", "*.example.net", "c.example.net"]);
    let network = prop::sample::select(vec!["1.0.0.0/8", "1.2.0.0/16", "0.0.0.0/0", "2606::/16", "::/0"]);
    let hosts = prop_oneof![name, network];
    (hosts, prop::option::of(prop::sample::select(vec![80_u16, 443]))).prop_map(|(hosts, port)| match port {
        Some(port) => format!("{hosts}:{port}"),
        None => hosts.to_owned(),
    })
}

fn any_policy() -> impl Strategy<Value = EgressRules> {
    let mode = prop::sample::select(vec![EgressMode::None, EgressMode::AllowList, EgressMode::Open]);
    let list = || prop::collection::vec(any_target(), 0..4);
    (mode, list(), list()).prop_map(|(mode, allow, deny)| {
        let parsed = |texts: Vec<String>| texts.iter().map(|text| Target::parse(text).unwrap()).collect();
        EgressRules { mode, allow: parsed(allow), deny: parsed(deny) }
    })
}

fn any_connection() -> impl Strategy<Value = (Host, IpAddr, u16)> {
    let name = prop::sample::select(vec!["a.example", "b.example", "x.example.net", "c.example.net", "d.example"]);
    let at = prop::sample::select(vec!["1.2.3.4", "1.9.9.9", "8.8.8.8", "2606::1", "127.0.0.1", "10.0.0.1"]);
    (name, at, prop::sample::select(vec![80, 443, 22])).prop_map(|(name, at, port)| (host(name), address(at), port))
}

proptest! {
    #[test]
    fn one_more_policy_only_narrows(
        policies in prop::collection::vec(any_policy(), 1..4), more in any_policy(), (host, at, port) in any_connection()
    ) {
        let before: Vec<&EgressRules> = policies.iter().collect();
        let after: Vec<&EgressRules> = before.iter().copied().chain([&more]).collect();
        let none = Targets::default();
        if decide_address(&after, &none, &host, to(at, port)).is_ok() {
            prop_assert!(decide_address(&before, &none, &host, to(at, port)).is_ok());
        }
    }

    #[test]
    fn a_host_that_is_refused_is_refused_at_every_address(
        policies in prop::collection::vec(any_policy(), 1..4), (host, at, port) in any_connection()
    ) {
        let policies: Vec<&EgressRules> = policies.iter().collect();
        if decide_host(&policies, &host, port).is_err() {
            prop_assert!(decide_address(&policies, &Targets::default(), &host, to(at, port)).is_err());
        }
    }

    #[test]
    fn no_text_makes_the_parsers_fail_otherwise_than_by_an_error(text in any::<String>()) {
        let _ = (Host::parse(&text), Target::parse(&text));
    }

    #[test]
    fn an_address_is_reached_only_if_it_is_public_or_named(bits in any::<u128>(), is_v4 in any::<bool>()) {
        let at = if is_v4 { IpAddr::from((bits as u32).to_be_bytes()) } else { IpAddr::from(bits.to_be_bytes()) };
        let open = policy(EgressMode::Open, &[], &[]);
        let decided = decide_address(&[&open], &Targets::default(), &Host::Address(at), to(at, 443));
        prop_assert_eq!(decided.is_ok(), special(at).is_none());
    }
}

#[test]
fn a_secret_is_for_the_hosts_that_its_binding_and_its_use_name_at_the_port_of_https() {
    let binding = |hosts: &[&str]| SecretBinding {
        hosts: hosts.iter().map(|text| Target::parse(text).unwrap()).collect(),
        header: "authorization".to_owned(),
        form: SecretForm::Bearer,
        owners: Vec::new(),
    };
    let bound = binding(&["api.example", "*.wild.example:8443"]);
    let covers = |text: &str, name: &str, port| SecretUse::parse(text).unwrap().covers(&bound, &host(name), port);
    for (name, port, is_covered) in [
        ("api.example", 443, true),
        ("API.example.", 443, true),
        ("api.example", 8443, false),
        ("a.api.example", 443, false),
        ("xapi.example", 443, false),
        ("a.b.wild.example", 8443, true),
        ("a.wild.example", 443, false),
        ("wild.example", 8443, false),
        ("10.0.0.1", 443, false),
    ] {
        assert_eq!(covers("key", name, port), is_covered, "{name}:{port}");
    }
    assert!(covers("key@api.example", "api.example", 443));
    assert!(!covers("key@api.example:8443", "api.example", 443));
    assert!(!covers("key@a.wild.example", "a.wild.example", 8443), "a target without a port is at 443");
    assert!(covers("key@a.wild.example:8443", "a.wild.example", 8443));
    assert!(!covers("key@other.example", "api.example", 443));
    // A use cannot widen the binding.
    assert!(!covers("key@other.example", "other.example", 443));
    assert_eq!((SecretBinding::https_port(80), SecretBinding::https_port(8080)), (443, 8080));
    let ann = OwnerId::parse("ann").unwrap();
    let owned = SecretBinding { owners: vec![ann.clone()], ..bound.clone() };
    assert!(owned.admits(Some(&ann)) && !owned.admits(None) && !owned.admits(Some(&OwnerId::parse("bob").unwrap())));
    assert!(bound.admits(None));
}

#[test]
fn a_binding_that_would_show_a_secret_or_change_the_request_is_refused() {
    let good = SecretBinding {
        hosts: vec![Target::parse("a.example").unwrap()],
        header: "x-key".to_owned(),
        form: SecretForm::Plain,
        owners: Vec::new(),
    };
    assert_eq!(good.check(), Ok(()));
    let at = |hosts: &[&str]| hosts.iter().map(|text| Target::parse(text).unwrap()).collect::<Vec<_>>();
    for hosts in
        [at(&["10.0.0.0/8"]), at(&["a.example", "10.0.0.1:443"]), at(&["a.example:80"]), at(&["a.example"; 101])]
    {
        assert!(SecretBinding { hosts: hosts.clone(), ..good.clone() }.check().is_err(), "{hosts:?}");
    }
    for header in
        ["", "host", "connection", "content-length", "transfer-encoding", "X-Key", "a b", "a:", "a\r\nb", "\u{e4}"]
    {
        let binding = SecretBinding { header: header.to_owned(), ..good.clone() };
        assert_eq!(binding.check(), Err(InvalidBinding::Header), "{header:?}");
    }
    for user in ["a:b", "a\n", &"u".repeat(257)] {
        let binding = SecretBinding { form: SecretForm::Basic(user.to_owned()), ..good.clone() };
        assert_eq!(binding.check(), Err(InvalidBinding::User), "{user:?}");
    }
    for text in ["plain", "bearer", "basic:", "basic:ann"] {
        assert_eq!(SecretForm::parse(text).unwrap().to_string(), text);
    }
    assert_eq!(SecretForm::parse("basic"), None);
    for text in ["key", "key@a.example", "key@*.a.example:443", "a.b_c-d"] {
        assert_eq!(SecretUse::parse(text).unwrap().to_string(), text);
    }
    for text in ["", "@a.example", ".", "..", "a b", "a/b", "key@", "key@*", "key@a.example:0", &"x".repeat(65)] {
        assert!(SecretUse::parse(text).is_err(), "{text}");
    }
}
