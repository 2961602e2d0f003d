//! The `bundle` command: collects what helps to find a fault in one file, and nothing that is secret.
//! What is collected is listed here by name, so that a new setting or field is not in it by itself.

use std::{
    collections::BTreeMap,
    fs::OpenOptions,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use clap::{ArgMatches, Command, CommandFactory as _};
use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use neptune_agent_core::logs::requests::LogRead;
use neptune_edge_engine::docker::Docker;
use neptune_wire::redact;
use serde::Serialize;
use serde_json::json;

use crate::{
    Error,
    cli::{BundleArgs, Cli, DoctorArgs},
    commands::{doctor, variable},
    config::{Config, config},
};

/// Lines of the log of a container.
const LOG_LINES: usize = 200;

/// A file of the bundle: its name and its content.
type Entry = (String, Vec<u8>);

/// Writes the bundle, and prints its name.
///
/// # Errors
/// The file cannot be created.
#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
pub async fn bundle(args: BundleArgs) -> Result<(), Error> {
    let BundleArgs { run, logs, output } = args;
    let command = Cli::command();
    let matches = command.clone().get_matches();
    let settings = matches.subcommand_matches("bundle").map(|matches| settings(&command, matches));
    let parsed = config(run.clone().or_environment(variable));
    let doctor_args = DoctorArgs { run, json: true, resolve: Vec::new() };
    let findings = Box::pin(doctor::findings(&doctor_args)).await;
    let mut entries = vec![
        entry("about.json", &about(parsed.as_ref().ok(), Timestamp::now())),
        ("doctor.json".to_owned(), doctor::report::json(&findings).into_bytes()),
        entry("settings.json", &settings),
    ];
    let mut name = "node".to_owned();
    if let Ok(config) = &parsed {
        name = config.node.to_string();
        entries.extend(containers(config, logs).await);
    }
    let output = output.unwrap_or_else(|| PathBuf::from(format!("neptune-{name}.tar.gz")));
    write(&output, &format!("neptune-{name}"), &entries)
        .map_err(|source| Error::File { path: output.clone(), source })?;
    // A closed standard output is no problem of the node.
    let _ = writeln!(io::stdout(), "{}", output.display());
    Ok(())
}

fn entry(name: &str, content: &impl Serialize) -> Entry {
    let json = serde_json::to_vec_pretty(content).expect("texts and numbers are JSON");
    (name.to_owned(), json)
}

fn about(config: Option<&Config>, now: Timestamp) -> serde_json::Value {
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    json!({
        "created": now.to_string(),
        "version": env!("CARGO_PKG_VERSION"),
        "node": config.map(|config| config.node.to_string()),
        "user": rustix::process::geteuid().as_raw(),
        "system": text(system.sysname()), "release": text(system.release()),
        "machine": text(system.machine()),
    })
}

/// A setting of the agent, as it was given.
#[derive(Debug, PartialEq, Serialize)]
struct Setting {
    values: Vec<String>,
    /// Whether it is a flag, a variable or the default.
    source: String,
}

/// The settings of `run`, without passwords and queries in URLs.
fn settings(command: &Command, matches: &ArgMatches) -> BTreeMap<String, Setting> {
    let run = command.find_subcommand("run").into_iter().flat_map(Command::get_arguments);
    let setting = |argument: &clap::Arg| {
        let id = argument.get_id().as_str();
        let values = matches.try_get_raw(id).ok()??;
        let values = values.map(|value| without_password(&value.to_string_lossy())).collect();
        let source = matches.value_source(id).map(|source| format!("{source:?}"));
        let setting = Setting { values, source: source.unwrap_or_default() };
        Some((argument.get_long()?.to_owned(), setting))
    };
    run.filter_map(setting).collect()
}

fn without_password(value: &str) -> String {
    if value.contains("://") || value.contains('@') { redact(value) } else { value.to_owned() }
}

/// The containers of the node, and their logs if they are wanted.
async fn containers(config: &Config, logs: bool) -> Vec<Entry> {
    let docker = Docker::new(&config.docker_socket);
    let described = match docker.describe(&config.node).await {
        Ok(described) => described,
        Err(problem) => {
            return vec![entry("containers.json", &json!({"problem": problem.message}))];
        }
    };
    let mut entries = vec![entry("containers.json", &described)];
    for container in described.iter().filter(|_| logs) {
        let name = container.name.trim_start_matches('/').to_owned();
        let read = LogRead {
            id: "bundle".parse().expect("a valid ID"),
            worker: name.clone(),
            container: container.id.clone(),
            lines: LOG_LINES,
            since: None,
        };
        let text = docker.read_log(&read).await;
        let text = text.map_or_else(|problem| problem, |log| log.text);
        entries.push((format!("logs/{name}.log"), text.into_bytes()));
    }
    entries
}

/// Writes the entries below a directory of this name. Only the user can read the file.
fn write(path: &Path, directory: &str, entries: &[Entry]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, content) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, format!("{directory}/{name}"), &content[..])?;
    }
    archive.into_inner()?.finish()?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn settings_have_no_passwords() {
        let command = Cli::command();
        let arguments = [
            "neptune-edge",
            "bundle",
            "--node-name",
            "edge0",
            "--mqtt-url",
            "mqtts://edge0:hunter2@broker:8883",
            "--registry-config",
            "/etc/neptune/registries.json",
            "--allow-device",
            "a.b/c=/dev/null",
        ];
        let matches = command.clone().get_matches_from(arguments);
        let settings = settings(&command, matches.subcommand_matches("bundle").unwrap());
        let value = |name: &str| settings[name].values.join(" ");
        assert_eq!(value("mqtt-url"), "mqtts://broker:8883");
        assert_eq!(value("registry-config"), "/etc/neptune/registries.json");
        assert_eq!(value("allow-device"), "a.b/c=/dev/null");
        assert_eq!(settings["node-name"].source, "CommandLine");
        assert!(!serde_json::to_string(&settings).unwrap().contains("hunter2"));
    }
}
