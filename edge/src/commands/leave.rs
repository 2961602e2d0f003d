//! The `leave` command: stops the agent, and removes what `join` wrote.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use neptune_agent_core::domain::node_context::KEY_FILE;
use neptune_transfer::durable;

use super::{
    doctor::inspect::is_in_use,
    join::{files, preflight::Places, settings, step::Failure, unit},
};
use crate::cli::LeaveArgs;

/// The beginning of each line on standard error.
const NAME: &str = "neptune-edge leave";

/// Leaves the fleet, prints what was removed and what stays, and returns the exit code of the
/// process.
pub async fn leave(args: LeaveArgs) -> ExitCode {
    match run(&args).await {
        Ok(report) => {
            print!("{report}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{NAME}: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Removes first the settings, so that a kill in between leaves no agent that starts without its
/// certificate. The same command continues.
async fn run(args: &LeaveArgs) -> Result<String, String> {
    let path = &args.place.settings;
    let present = files::settings(path).map_err(|Failure { problem, .. }| {
        format!("{problem}; nothing was removed; run the command as root")
    })?;
    let values = settings::parse(&present);
    let places = Places::new(args.place.data_dir.as_deref(), &values);
    if !is_of_join(&values, &places) {
        return Err(format!(
            "the settings in {} are not those of a join, and nothing was removed; to stop the agent: systemctl disable \
             --now neptune-edge",
            path.display()
        ));
    }
    if !args.place.no_unit {
        unit::stop().await.map_err(|why| {
            format!(
                "the agent was not stopped, and nothing was removed: {why}; correct the cause, or stop the agent by \
                 other means and add --no-unit"
            )
        })?;
    }
    if args.purge {
        check_purge(&places.data_dir)?;
    }
    let failed = |path: &Path, error: &io::Error| {
        let path = path.display();
        format!("cannot remove {path}: {error}; run the command again as root, it continues")
    };
    let kept = settings::without_join(&present);
    let has_settings = has_settings(&kept);
    if has_settings {
        files::write_settings(path, &kept, path)
            .map_err(|Failure { problem, remedy, .. }| format!("{problem}; {remedy}"))?;
    } else {
        remove_settings(path).map_err(|error| failed(path, &error))?;
    }
    let certificates = [&places.certificate, &places.authority];
    let certificates = files::remove_certificates(&certificates)
        .map_err(|error| failed(&places.data_dir, &error))?;
    if args.purge {
        durable::remove(&places.data_dir).map_err(|error| failed(&places.data_dir, &error))?;
    }
    let node = values.get("NEPTUNE_NODE_NAME").map(String::as_str);
    Ok(report(node, path, has_settings, &certificates, &places.data_dir, args.purge))
}

/// Whether the connection is that of a join, or none: a kill may have left the certificates.
fn is_of_join(settings: &BTreeMap<String, String>, places: &Places) -> bool {
    let certificate = settings.get("NEPTUNE_MQTT_CERT_FILE").map(Path::new);
    let is_none =
        ["NEPTUNE_MQTT_URL", "NEPTUNE_TRANSPORT"].iter().all(|it| !settings.contains_key(*it));
    is_none || certificate == Some(&places.certificate)
}

/// Whether a line of the settings sets something.
fn has_settings(text: &str) -> bool {
    !settings::parse(text).is_empty()
}

/// Removes the file, also if the power fails before the certificates are removed.
fn remove_settings(path: &Path) -> io::Result<()> {
    durable::remove_file(path)?;
    match path.parent() {
        Some(parent) if parent.is_dir() => durable::sync_directory(parent),
        _ => Ok(()),
    }
}

/// Checks that the directory is that of an agent, and that no agent runs in it.
fn check_purge(data_dir: &Path) -> Result<(), String> {
    let shown = data_dir.display();
    if is_in_use(data_dir) {
        return Err(format!(
            "an agent uses {shown}, and nothing was removed; stop it, then run the command again"
        ));
    }
    let is_of_agent = [KEY_FILE, "neptune.db", "lock"].iter().any(|it| data_dir.join(it).exists());
    if is_of_agent || !data_dir.exists() {
        return Ok(());
    }
    Err(format!(
        "{shown} is not the data directory of an agent, and nothing was removed; correct --data-dir, or remove the \
         directory yourself"
    ))
}

/// What was removed, what stays, and the commands that remove it.
fn report(
    node: Option<&str>,
    path: &Path,
    has_settings: bool,
    certificates: &[PathBuf],
    data_dir: &Path,
    purge: bool,
) -> String {
    let mut lines = Vec::new();
    if has_settings {
        lines.push(format!("Changed  {}: only your other settings are left", path.display()));
    } else {
        lines.push(format!("Removed  {}", path.display()));
    }
    lines.extend(certificates.iter().map(|path| format!("Removed  {}", path.display())));
    let data = data_dir.display();
    if purge {
        lines.push(format!("Removed  {data}"));
    } else if fs::exists(data_dir).unwrap_or(true) {
        lines.push(format!("Kept     {data}: remove it with `neptune-edge leave --purge`"));
    }
    if let Some(node) = node {
        lines.push(format!("Kept     containers of {node}, which keep running: remove them with"));
        for label in ["io.neptune.node", "io.neptune.training-node"] {
            lines.push(format!(
                "         docker ps -aq --filter label={label}={node} | xargs -r docker rm -f"
            ));
        }
        lines.push(format!(
            "Next     kubectl neptune revoke {node}, or kubectl delete edgenode {node}"
        ));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_of_a_join_are_removed() {
        let is_of_join = |text: &str| {
            let values = settings::parse(text);
            is_of_join(&values, &Places::new(None, &values))
        };
        let joined = "NEPTUNE_MQTT_URL='mqtts://b'\nNEPTUNE_MQTT_CERT_FILE='/var/lib/neptune/certificate.pem'";
        assert!(is_of_join(joined) && is_of_join("") && is_of_join("NEPTUNE_DATA_DIR='/d'"));
        assert!(!is_of_join("NEPTUNE_MQTT_URL='mqtts://u:p@b'"));
        assert!(!is_of_join("NEPTUNE_TRANSPORT='eventbus'"));
        assert!(!is_of_join(&joined.replace("/var/lib/neptune", "/etc/neptune")));
    }

    #[test]
    fn report_names_what_stays_and_how_to_remove_it() {
        let data = Path::new("/");
        let text = report(Some("edge0"), Path::new("/e"), false, &["/c".into()], data, false);
        for part in ["Removed  /e\n", "Removed  /c\n", "Kept     /:", "label=io.neptune.node=edge0"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = report(None, Path::new("/e"), true, &[], data, true);
        assert_eq!(text, "Changed  /e: only your other settings are left\nRemoved  /\n");
    }
}
