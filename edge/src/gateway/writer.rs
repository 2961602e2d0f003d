//! The task that writes the files of the gateways, follows their secrets, and removes the
//! directories of gateways that are gone. One task does all, in order, so that a removal cannot
//! overtake the files of a gateway that returns.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    time::Duration,
};

use neptune_agent_core::{
    domain::{
        gateway_files::{
            GatewayDir, GatewayFiles, SecretName, WantedGateways, WrittenFiles, WrittenGateways,
        },
        node_context::NodeContext,
    },
    gateway::files::{CopyNames, ca_copy_name, config_content, tls_copy_names},
};
use neptune_transfer::durable;
use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::timeout,
};
use tracing::{info, warn};

use super::{capture_dir, secrets};
use crate::event::AgentEvent;

/// Interval between two reads of the secrets.
const PERIOD: Duration = Duration::from_secs(1);

/// The directories that the writer uses.
#[derive(Debug, Clone)]
pub struct WriterDirs {
    /// The directory of all gateways.
    pub gateways: PathBuf,
    /// The node's directory of secrets.
    pub secrets: PathBuf,
    /// Which directories may take captured samples.
    pub context: NodeContext,
}

/// Writes the wanted files until the sender is dropped.
pub async fn run(
    dirs: WriterDirs,
    mut wanted: watch::Receiver<WantedGateways>,
    events: mpsc::Sender<AgentEvent>,
) {
    let mut last = WrittenGateways::default();
    loop {
        let now = wanted.borrow_and_update().clone();
        let (is_idle, dirs) = (now.gateways.is_empty(), dirs.clone());
        let written = spawn_blocking(move || write_all(&dirs, &now)).await;
        let written = written.expect("writing files does not panic");
        if written != last {
            // The receiver is dropped only when the agent stops.
            let _ = events.send(AgentEvent::GatewayFiles(written.clone())).await;
            last = written;
        }
        let changed = if is_idle {
            Some(wanted.changed().await)
        } else {
            timeout(PERIOD, wanted.changed()).await.ok()
        };
        if changed.is_some_and(|changed| changed.is_err()) {
            return;
        }
    }
}

fn write_all(dirs: &WriterDirs, wanted: &WantedGateways) -> WrittenGateways {
    let write = |(dir, files): (&GatewayDir, _)| (dir.clone(), write(dir, files, dirs));
    let gateways: BTreeMap<_, _> = wanted.gateways.iter().map(write).collect();
    if let Some(mounted) = &wanted.mounted
        && let Err(error) = gc(&dirs.gateways, wanted, mounted)
    {
        warn!(%error, path = %dirs.gateways.display(), "cannot remove files of removed gateways");
    }
    WrittenGateways { revision: wanted.revision, gateways }
}

fn write(dir: &GatewayDir, files: &GatewayFiles, dirs: &WriterDirs) -> WrittenFiles {
    let mut notes = Vec::new();
    let mut read = |name: Option<&SecretName>, until: &str| {
        let content =
            name?.clone().and_then(|name| Ok((secrets::read(&dirs.secrets, &name)?, name)));
        content.map_err(|why| notes.push(format!("{why}; {until} until then"))).ok()
    };
    let at_edge = "hard samples stay at the edge";
    let token = read(files.token.as_ref(), at_edge);
    let ca = read(files.ca.as_ref(), at_edge).map(|(content, _)| (ca_copy_name(&content), content));
    let closed = "the gateway keeps the certificate before, and without one accepts no client";
    let tls = files.tls.as_ref();
    let certificate = read(tls.map(|tls| &tls.cert), closed);
    let key = read(tls.map(|tls| &tls.key), closed);
    let pair = certificate
        .zip(key)
        .map(|((certificate, _), (key, _))| (tls_copy_names(&certificate, &key), certificate, key));
    let copies = token.map(|(content, name)| (name, content)).into_iter().chain(ca.clone());
    let pairs = pair.iter().flat_map(|(names, certificate, key)| {
        [(names.0.clone(), certificate.clone()), (names.1.clone(), key.clone())]
    });
    let copies: BTreeMap<_, _> = copies.chain(pairs).collect();
    let names = CopyNames {
        ca: ca.as_ref().map(|(name, _)| name.as_str()),
        tls: pair.as_ref().map(|(names, ..)| names),
    };
    let capture = files.capture.as_deref().map(|path| {
        capture_dir::prepare(path, &dirs.context)
            .map_err(|why| format!("gateway.capture: directory {} {why}", path.display()))
    });
    let is_captured = matches!(capture, Some(Ok(_)));
    let group = dirs.context.gateway_group();
    let written = write_files(dir, files, (names, is_captured, &copies), group).map_err(|error| {
        format!("cannot write the gateway's files in {}: {error}; retrying", dir.0.display())
    });
    let capture = capture.and_then(|capture| {
        let refused =
            |why: String| notes.push(format!("{why}; samples are not captured until then"));
        capture.map_err(refused).ok()
    });
    WrittenFiles { written, capture, notes }
}

fn write_files(
    dir: &GatewayDir,
    files: &GatewayFiles,
    (names, captures, copies): (CopyNames<'_>, bool, &BTreeMap<String, Vec<u8>>),
    group: Option<u32>,
) -> io::Result<()> {
    // Only agent and gateway see state and secrets; others see at most the configuration. The state
    // is given to the gateway's user with its container.
    let (dir_mode, secret_mode) = if group.is_some() { (0o750, 0o440) } else { (0o700, 0o400) };
    for (path, mode, group) in [
        (dir.0.clone(), 0o755, None),
        (dir.config(), 0o755, None),
        (dir.state(), 0o700, None),
        (dir.secrets(), dir_mode, group),
    ] {
        create_dir(&path, mode, group)?;
    }
    for (name, content) in copies {
        secrets::replace(&dir.secrets().join(name), content, secret_mode, group)?;
    }
    let path = dir.config_file();
    let before = fs::read(&path).unwrap_or_default();
    if secrets::replace(&path, &config_content(files, names, captures, &before), 0o644, None)? {
        info!(worker = %files.worker, path = %path.display(), "gateway configuration written");
    }
    // Last, because the configuration before names them.
    for entry in fs::read_dir(dir.secrets())? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(|name| copies.contains_key(name)) {
            durable::remove_file(&entry.path())?;
        }
    }
    Ok(())
}

fn create_dir(path: &Path, mode: u32, group: Option<u32>) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    let metadata = fs::metadata(path)?;
    if group.is_some_and(|group| metadata.gid() != group) {
        chown(path, None, group)?;
    }
    if metadata.permissions().mode() & 0o777 == mode {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Removes the directories of gateways that are not wanted and that no container has mounted.
fn gc(root: &Path, wanted: &WantedGateways, mounted: &BTreeSet<PathBuf>) -> io::Result<()> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let dir = GatewayDir(entry?.path());
        if !wanted.gateways.contains_key(&dir) && !dir.is_mounted(mounted) {
            fs::remove_dir_all(&dir.0)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use neptune_agent_core::{
        desired::WantedWorker,
        domain::node_context::{GATEWAYS_DIR, NONROOT},
        fixtures::{node_context, wanted_gateway},
        gateway::{directories::gateway_dir, files::gateway_files},
    };
    use serde_json::{Value, json};

    use super::*;

    struct Node {
        temp: tempfile::TempDir,
        context: NodeContext,
        wanted: WantedWorker,
    }

    impl Node {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            fs::create_dir(temp.path().join("secrets")).unwrap();
            let user = rustix::process::geteuid().as_raw();
            let context = NodeContext {
                data_dir: temp.path().join("data"),
                agent_user: user,
                gateway_user: if user == 0 { NONROOT } else { user },
                ..node_context()
            };
            Self { temp, context, wanted: wanted_gateway() }
        }

        fn dir(&self) -> GatewayDir {
            gateway_dir(&self.wanted, &self.context)
        }

        fn secret(&self, name: &str) -> PathBuf {
            self.temp.path().join("secrets").join(name)
        }

        fn dirs(&self) -> WriterDirs {
            WriterDirs {
                gateways: self.context.data_dir.join(GATEWAYS_DIR),
                secrets: self.temp.path().join("secrets"),
                context: self.context.clone(),
            }
        }

        fn files(&self, version: Option<&str>) -> GatewayFiles {
            let spec = self.wanted.worker.gateway.as_ref().unwrap();
            gateway_files(&self.wanted, spec, version)
        }

        fn write(&self, version: Option<&str>) -> WrittenFiles {
            let files = self.files(version);
            write(&self.dir(), &files, &self.dirs())
        }

        fn config(&self) -> Value {
            serde_json::from_slice(&fs::read(self.dir().config_file()).unwrap()).unwrap()
        }

        fn copies(&self) -> Vec<String> {
            let entries = fs::read_dir(self.dir().secrets()).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect()
        }
    }

    #[test]
    fn secret_is_copied_when_it_appears_and_removed_with_its_source() {
        let node = Node::new();
        let written = node.write(Some("1"));
        assert_eq!(written.written, Ok(()));
        let [problem] = &written.notes[..] else { unreachable!("{written:?}") };
        assert!(problem.contains(node.secret("llm").to_str().unwrap()), "{problem}");
        let end = "not found on the node; create it; hard samples stay at the edge until then";
        assert!(problem.ends_with(end), "{problem}");
        assert_eq!(node.copies(), [""; 0]);

        for secret in ["one", "two"] {
            // As tools that rotate secrets do.
            fs::write(node.secret("new"), secret).unwrap();
            fs::rename(node.secret("new"), node.secret("llm")).unwrap();
            let written = node.write(Some("1"));
            let expected = WrittenFiles { written: Ok(()), capture: None, notes: Vec::new() };
            assert_eq!(written, expected);
            assert_eq!(fs::read_to_string(node.dir().secrets().join("llm")).unwrap(), secret);
        }
        assert!(!node.config().to_string().contains("two"));
        fs::remove_file(node.secret("llm")).unwrap();
        assert_eq!(node.write(Some("1")).notes.len(), 1);
        assert_eq!(node.copies(), [""; 0]);
    }

    #[test]
    fn authorities_are_named_only_while_they_exist() {
        let mut node = Node::new();
        fs::write(node.secret("llm"), "token").unwrap();
        node.wanted.worker.gateway.as_mut().unwrap().ca_file = Some("ca".into());
        assert_eq!(node.write(None).notes.len(), 1);
        assert_eq!(node.config()["cloud"]["caFile"], Value::Null);
        fs::write(node.secret("ca"), "pem").unwrap();
        assert_eq!(node.write(None).notes, [""; 0]);
        let name = ca_copy_name(b"pem");
        let path = format!("/etc/neptune-gateway-secrets/{name}");
        assert_eq!(node.config()["cloud"]["caFile"], path);
        let mut copies = node.copies();
        copies.sort();
        assert_eq!(copies, [name, "llm".to_owned()]);
    }

    #[test]
    fn certificate_and_key_are_copied_together_under_names_of_the_pair() {
        let mut node = Node::new();
        fs::write(node.secret("llm"), "token").unwrap();
        let files = json!({"certFile": "web.crt", "keyFile": "web.key"});
        let gateway = node.wanted.worker.gateway.as_mut().unwrap();
        gateway.tls = serde_json::from_value(files.clone()).unwrap();
        let mut config = serde_json::to_value(&gateway.config).unwrap();
        config["tls"] = files.clone();
        gateway.config = serde_json::from_value(config).unwrap();
        fs::write(node.secret("web.crt"), "one").unwrap();
        let written = node.write(None);
        let [remark] = &written.notes[..] else { unreachable!("{written:?}") };
        assert!(
            remark.contains("web.key") && remark.contains("accepts no client until then"),
            "{remark}"
        );
        assert_eq!((node.config()["tls"].clone(), node.copies()), (files, vec!["llm".to_owned()]));
        for content in ["one", "two"] {
            fs::write(node.secret("web.key"), content).unwrap();
            assert_eq!(node.write(None).notes, [""; 0]);
            let (certificate, key) = tls_copy_names(b"one", content.as_bytes());
            let path = format!("/etc/neptune-gateway-secrets/{certificate}");
            assert_eq!(node.config()["tls"]["certFile"], path);
            let mut copies = node.copies();
            copies.sort();
            assert_eq!(copies, [&certificate, &key, "llm"]);
        }
    }

    #[test]
    fn unchanged_configuration_is_not_written_again() {
        let node = Node::new();
        node.write(Some("1"));
        let inode = || {
            use std::os::unix::fs::MetadataExt as _;
            fs::metadata(node.dir().config_file()).unwrap().ino()
        };
        let first = inode();
        node.write(Some("1"));
        node.write(None);
        assert_eq!((inode(), &node.config()["edge"]["modelVersion"]), (first, &json!("1")));
        node.write(Some("2"));
        assert_ne!(inode(), first);
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let dir = node.dir();
        assert_eq!([mode(dir.config_file()), mode(dir.state())], [0o644, 0o700]);
    }

    #[test]
    fn gateway_of_another_user_reads_secrets_and_cannot_change_them() {
        let mut node = Node::new();
        fs::write(node.secret("llm"), "token").unwrap();
        // Those of an agent that shares its user with the gateway.
        let shared = node.context.agent_user;
        let separate = std::mem::replace(&mut node.context.gateway_user, shared);
        let (dir, copy) = (node.dir().secrets(), node.dir().secrets().join("llm"));
        let modes = || {
            [&dir, &copy].map(|path| {
                let metadata = fs::metadata(path).unwrap();
                assert_eq!(metadata.uid(), shared);
                (metadata.permissions().mode() & 0o777, metadata.gid())
            })
        };
        node.write(None);
        assert_eq!(modes().map(|(mode, _)| mode), [0o700, 0o400]);
        node.context.gateway_user = separate;
        if separate != shared {
            node.write(None);
            assert_eq!(modes(), [(0o750, separate), (0o440, separate)]);
        }
    }

    #[test]
    fn refused_directory_for_samples_is_a_note_and_the_gateway_runs() {
        let mut node = Node::new();
        fs::write(node.secret("llm"), "token").unwrap();
        let hard = node.temp.path().canonicalize().unwrap().join("hard");
        let gateway = node.wanted.worker.gateway.as_mut().unwrap();
        gateway.capture_dir = Some(hard.display().to_string());
        let config = json!({"service": "s", "capture": {"maxBytes": 5}});
        gateway.config = serde_json::from_value(config).unwrap();
        let refused = node.write(None);
        let [text] = &refused.notes[..] else { unreachable!("{refused:?}") };
        assert_eq!((refused.written, refused.capture), (Ok(()), None));
        let end = "--allow-capture-dir of neptune-edge; samples are not captured until then";
        assert!(text.starts_with("gateway.capture: directory /") && text.ends_with(end), "{text}");
        assert_eq!(node.config().get("capture"), None);

        node.context.allowed.captures = vec![hard.parent().unwrap().to_owned()];
        let written = node.write(None);
        assert_eq!((written.notes, written.capture), (Vec::new(), Some(hard.clone())));
        assert!(hard.is_dir() && node.config()["capture"]["directory"] != Value::Null);
    }

    #[test]
    fn directory_is_removed_when_nobody_wants_or_mounts_it() {
        let node = Node::new();
        let files = node.files(None);
        let mut wanted = WantedGateways {
            revision: 1,
            gateways: [(node.dir(), files.clone())].into(),
            mounted: Some(BTreeSet::new()),
        };
        write_all(&node.dirs(), &wanted);
        fs::write(node.dir().state().join("state.json"), "learnt").unwrap();

        wanted.gateways.clear();
        wanted.mounted = None;
        write_all(&node.dirs(), &wanted);
        wanted.mounted = Some([node.dir().state()].into());
        write_all(&node.dirs(), &wanted);
        assert!(node.dir().state().join("state.json").exists());

        // The object was recreated under the same name.
        let recreated = WantedWorker { uid: "new".into(), ..node.wanted.clone() };
        let other = gateway_dir(&recreated, &node.context);
        wanted.gateways.insert(other.clone(), files);
        wanted.mounted = Some([other.config()].into());
        let written = write_all(&node.dirs(), &wanted);
        assert!(!node.dir().0.exists() && other.config_file().exists());
        assert_eq!(written.gateways.into_keys().collect::<Vec<_>>(), [other]);
    }

    #[test]
    fn unwritable_directory_is_reported_with_its_path() {
        let node = Node::new();
        fs::write(node.temp.path().join("data"), "a file in the way").unwrap();
        let problem = node.write(None).written.unwrap_err();
        assert!(problem.contains(node.dir().0.to_str().unwrap()), "{problem}");
    }
}
