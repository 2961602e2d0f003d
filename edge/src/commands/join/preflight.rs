//! Decides from the command line, the token and the present settings whether the node can join, and
//! where its files are. Pure.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use neptune_join::JoinToken;
use neptune_wire::{KeyPin, NodeName};
use reqwest::Url;
use rustls::pki_types::ServerName;

use super::step::{Failure, Reason, Step};
use crate::cli::{JoinArgs, Transport};

/// The data directory without a setting.
const DATA_DIR: &str = "/var/lib/neptune";
/// Names of the files of a join in the data directory.
const AUTHORITY_FILE: &str = "ca.pem";
const CERTIFICATE_FILE: &str = "certificate.pem";

/// Where the join server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinServer {
    /// The name or the address, without brackets.
    pub host: String,
    /// The TCP port, 443 if the URL has none.
    pub port: u16,
    /// The name for the handshake. A proxy can route by it; the certificate has another name.
    pub name: ServerName<'static>,
}

impl JoinServer {
    /// Returns `HOST:PORT`, with an IPv6 address in brackets.
    #[must_use]
    pub fn address(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// Where the files of a join are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The data directory of the agent.
    pub data_dir: PathBuf,
    /// The certificates of the authority.
    pub authority: PathBuf,
    /// The certificate of the node.
    pub certificate: PathBuf,
}

impl Places {
    /// Returns the places below the directory that is given, or that the settings name.
    #[must_use]
    pub fn new(given: Option<&Path>, settings: &BTreeMap<String, String>) -> Self {
        let set = settings.get("NEPTUNE_DATA_DIR").map(Path::new);
        let data_dir = given.or(set).unwrap_or(Path::new(DATA_DIR)).to_owned();
        Self {
            authority: data_dir.join(AUTHORITY_FILE),
            certificate: data_dir.join(CERTIFICATE_FILE),
            data_dir,
        }
    }
}

/// What a join does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinPlan {
    /// The permission, with the pin of the authority.
    pub token: JoinToken,
    /// The server that issues the certificate.
    pub server: JoinServer,
}

/// Checks that a node over this transport joins anything. Over `EventBus` the node has the identity of
/// its session with `KubeEdge`, no certificate, and no setting that a server would know.
///
/// # Errors
/// [`Reason::NothingToJoin`], with the settings that the agent needs.
pub fn check_transport(args: &JoinArgs) -> Result<(), Failure> {
    if args.transport == Transport::Mqtt {
        return Ok(());
    }
    let node = args.node_name.as_deref().unwrap_or("NAME.OF.THE.NODE");
    let path = args.place.settings.display();
    let problem = "a node over EventBus joins nothing: its session with KubeEdge's cloudcore is its identity, and \
                   needs neither URL, token nor certificate";
    let remedy = format!(
        "with the DaemonSet there is nothing to do; for an agent on the host write these lines into {path}, then \
         `systemctl enable --now neptune-edge`:\n    NEPTUNE_NODE_NAME='{node}'\n    NEPTUNE_TRANSPORT='eventbus'\n    \
         NEPTUNE_LOCAL_BROKER='mqtt://127.0.0.1:1883'"
    );
    Err(Failure::new(Step::Preflight, Reason::NothingToJoin, problem, remedy))
}

/// Returns the plan of a join. `has_rights` is whether the process may write the system's files.
///
/// # Errors
/// The failure of the first step.
pub fn plan(args: &JoinArgs, token: &str, has_rights: bool) -> Result<JoinPlan, Failure> {
    let fail = |reason, problem: String, remedy: &str| {
        Failure::new(Step::Preflight, reason, problem, remedy)
    };
    let token: JoinToken = token.parse().map_err(|error| {
        let remedy = "copy the whole line that `neptune-cloud enroll NODE` printed";
        fail(Reason::TokenMalformed, format!("{error}"), remedy)
    })?;
    let url = args.url.as_deref().unwrap_or_default();
    let server = server(url).map_err(|why| {
        let problem = format!("{url:?} is not the URL of a join server: {why}");
        let remedy = "use the URL that `neptune-cloud enroll NODE` printed: https://HOST:PORT";
        fail(Reason::UrlInvalid, problem, remedy)
    })?;
    if let Some(name) = args.node_name.as_deref().filter(|name| *name != token.node.as_str()) {
        let problem = format!("this node is {name}, and the token is for {}", token.node);
        let remedy = format!("run `neptune-cloud enroll {name}`, and join with the line it prints");
        return Err(fail(Reason::NodeNameDiffers, problem, &remedy));
    }
    if !has_rights && !args.place.no_unit {
        let remedy = "run the same line as root, for example with sudo";
        return Err(fail(Reason::NotRoot, "the user is not root".to_owned(), remedy));
    }
    Ok(JoinPlan { token, server })
}

/// Checks that the present settings are none, or those of a join of this node to this fleet, whose
/// authorities are those of the file that the settings name.
///
/// # Errors
/// [`Reason::AlreadyJoined`].
pub fn check_present(
    plan: &JoinPlan,
    settings: &BTreeMap<String, String>,
    authorities: &[KeyPin],
    path: &Path,
) -> Result<(), Failure> {
    const REPLACE: &str = "add --force to replace these settings";
    const LEAVE: &str = "run `neptune-edge leave` first, or add --force to replace these settings";
    let is_set = |name: &str| settings.contains_key(name);
    let is_eventbus = settings.get("NEPTUNE_TRANSPORT").is_some_and(|it| it == "eventbus");
    if !is_set("NEPTUNE_MQTT_URL") && !is_eventbus {
        return Ok(());
    }
    let node: Option<NodeName> =
        settings.get("NEPTUNE_NODE_NAME").and_then(|name| name.parse().ok());
    let (what, remedy) = if is_eventbus {
        ("the node uses EventBus".to_owned(), REPLACE)
    } else if !is_set("NEPTUNE_MQTT_CERT_FILE") {
        ("the node connects with a password or without a login".to_owned(), REPLACE)
    } else if !authorities.contains(&plan.token.authority) {
        ("the node is one of another fleet".to_owned(), LEAVE)
    } else if node.as_ref() != Some(&plan.token.node) {
        let name = node.map_or_else(|| "unnamed".to_owned(), |node| node.to_string());
        (format!("the node is {name}, and the token is for {}", plan.token.node), LEAVE)
    } else {
        return Ok(());
    };
    let problem = format!("{what}, by its settings in {}", path.display());
    Err(Failure::new(Step::Preflight, Reason::AlreadyJoined, problem, remedy))
}

fn server(url: &str) -> Result<JoinServer, String> {
    let parsed: Url = url.trim().parse().map_err(|error| format!("{error}"))?;
    if parsed.scheme() != "https" {
        return Err("it does not begin with https://".to_owned());
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err("it has a user".to_owned());
    }
    if parsed.path() != "/" || parsed.query().is_some() || parsed.fragment().is_some() {
        return Err("there is text behind the port".to_owned());
    }
    let host = parsed.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host.clone()).map_err(|error| error.to_string())?;
    let port = parsed.port_or_known_default().ok_or("the port is missing")?;
    Ok(JoinServer { host, port, name })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{super::settings::parse, *};
    use crate::cli::PlaceArgs;

    fn pin(digit: &str) -> KeyPin {
        KeyPin(format!("sha256:{}", digit.repeat(64)))
    }

    fn token() -> String {
        let token = JoinToken::new("edge0".parse().unwrap(), &pin("a"), [7; 21]).unwrap();
        token.to_text().to_string()
    }

    fn args(url: &str) -> JoinArgs {
        JoinArgs {
            url: Some(url.to_owned()),
            token: None,
            token_file: None,
            node_name: None,
            transport: Transport::Mqtt,
            force: false,
            place: PlaceArgs { no_unit: false, settings: "/etc/e".into(), data_dir: None },
        }
    }

    #[test]
    fn url_is_that_of_a_server_and_nothing_else() {
        for (url, address) in [
            ("https://broker.example.org:30884", "broker.example.org:30884"),
            ("https://192.0.2.1:30884/", "192.0.2.1:30884"),
            ("https://[2001:db8::1]:30884", "[2001:db8::1]:30884"),
            ("https://join.example.org", "join.example.org:443"),
        ] {
            assert_eq!(plan(&args(url), &token(), true).unwrap().server.address(), address);
        }
        for url in
            ["http://b:1", "b:30884", "https://u:p@b", "https://b/v1/join", "https://b?x", ""]
        {
            let failure = plan(&args(url), &token(), true).unwrap_err();
            assert_eq!((failure.reason, failure.exit_code()), (Reason::UrlInvalid, 2), "{url}");
        }
    }

    #[test]
    fn node_over_eventbus_is_shown_the_settings_that_it_needs() {
        let over = |transport| JoinArgs {
            transport,
            node_name: Some("edge0".to_owned()),
            ..args("https://b:30884")
        };
        assert!(check_transport(&over(Transport::Mqtt)).is_ok());
        let failure = check_transport(&over(Transport::EventBus)).unwrap_err();
        assert_eq!((failure.reason, failure.exit_code()), (Reason::NothingToJoin, 2));
        let shown = parse(failure.remedy.split_once("neptune-edge`:").unwrap().1);
        assert_eq!(shown["NEPTUNE_NODE_NAME"], "edge0");
        assert_eq!(shown["NEPTUNE_TRANSPORT"], "eventbus");
        assert_eq!(shown["NEPTUNE_LOCAL_BROKER"], "mqtt://127.0.0.1:1883");
        assert!(failure.remedy.contains("into /etc/e, then"), "{}", failure.remedy);
    }

    #[test]
    fn wrong_token_name_or_user_is_refused_before_anything_is_written() {
        let url = "https://b:30884";
        let failure = plan(&args(url), "npt1:edge0", true).unwrap_err();
        assert_eq!((failure.reason, failure.exit_code()), (Reason::TokenMalformed, 2));
        let other = JoinArgs { node_name: Some("edge1".to_owned()), ..args(url) };
        let failure = plan(&other, &token(), true).unwrap_err();
        assert_eq!(failure.reason, Reason::NodeNameDiffers);
        assert!(failure.remedy.contains("enroll edge1"), "{}", failure.remedy);
        assert_eq!(plan(&args(url), &token(), false).unwrap_err().reason, Reason::NotRoot);
        let mut without_unit = args(url);
        without_unit.place.no_unit = true;
        assert!(plan(&without_unit, &token(), false).is_ok());
    }

    #[test]
    fn only_settings_of_this_node_and_fleet_are_replaced() {
        let plan = plan(&args("https://b"), &token(), true).unwrap();
        let joined = "NEPTUNE_NODE_NAME='edge0'\nNEPTUNE_MQTT_URL='mqtts://b'\n\
                      NEPTUNE_MQTT_CERT_FILE='/c'\n";
        let check = |text: &str, authority: &str| {
            check_present(&plan, &parse(text), &[pin(authority)], Path::new("/etc/e"))
                .map_err(|failure| failure.problem)
        };
        assert_eq!(check("", "b"), Ok(()));
        assert_eq!(check("NEPTUNE_DATA_DIR='/d'", "b"), Ok(()));
        assert_eq!(check(joined, "a"), Ok(()));
        assert!(check(joined, "b").unwrap_err().contains("another fleet"));
        assert!(check(&joined.replace("edge0", "edge9"), "a").unwrap_err().contains("edge9"));
        assert!(check("NEPTUNE_MQTT_URL='mqtt://u:p@b'", "a").unwrap_err().contains("password"));
        assert!(check("NEPTUNE_TRANSPORT=eventbus", "a").unwrap_err().contains("EventBus"));
    }

    #[test]
    fn data_directory_is_that_of_the_command_or_of_the_settings() {
        let settings = parse("NEPTUNE_DATA_DIR='/data'");
        let default = Places::new(None, &BTreeMap::new());
        assert_eq!(default.data_dir, Path::new("/var/lib/neptune"));
        assert_eq!(Places::new(None, &settings).authority, Path::new("/data/ca.pem"));
        let given = Places::new(Some(Path::new("/other")), &settings);
        assert_eq!(given.certificate, Path::new("/other/certificate.pem"));
    }
}
