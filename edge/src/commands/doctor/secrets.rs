//! Decides the findings about the directory of secrets: whether it has what the services need, and
//! whether only the agent and root read it. Pure.

use std::path::Path;

use neptune_wire::Replica;

use crate::commands::doctor::{
    facts::{NeededSecret, SecretAccess, SecretDir, SecretDirFacts},
    report::Finding,
};

const CHECK: &str = "secrets";

/// The files that the gateways of the stored services need, with the service.
pub fn needed(replica: Option<&Replica>) -> Vec<(String, String)> {
    let objects = replica.into_iter().flat_map(Replica::objects);
    let gateways = objects.flat_map(|(key, stored)| {
        let workers = stored.content.workers.iter();
        workers.filter_map(move |worker| Some((key, worker.gateway.as_deref()?)))
    });
    let files = gateways.flat_map(|(key, gateway)| {
        let tls = gateway.tls.iter().flat_map(|tls| [&tls.cert_file, &tls.key_file]);
        let files = [&gateway.token_file, &gateway.ca_file].into_iter().flatten().chain(tls);
        files.map(move |name| (name.clone(), key.to_string()))
    });
    files.collect()
}

/// One finding per problem, or one that all is well. `user` is the doctor's, `agent` the agent's.
pub fn secrets(facts: &SecretDirFacts, user: u32, agent: u32) -> Vec<Finding> {
    let SecretDirFacts { path, state, needed } = facts;
    let shown = path.display();
    let dir = match state {
        Ok(Some(dir)) => dir,
        Ok(None) if needed.is_empty() => {
            let seen = format!("{shown} does not exist; no service of this node needs it");
            return vec![Finding::ok(CHECK, seen)];
        }
        Ok(None) => {
            let seen = format!("{shown} does not exist; {} needs a file in it", needed[0].used_by);
            return vec![Finding::error(CHECK, seen, create(path))];
        }
        Err(why) => {
            let seen = format!("{shown}: {why}");
            return vec![Finding::error(CHECK, seen, create(path))];
        }
    };
    let mut findings: Vec<Finding> = needed.iter().filter_map(missing).collect();
    findings.extend(access(path, dir.access, agent));
    for file in &dir.files {
        let path = path.join(&file.name);
        findings.extend(access(&path, file.access, agent));
        let is_needed = needed.iter().any(|needed| needed.name == file.name);
        if !file.is_readable && !is_needed {
            let seen = format!("user {user} cannot read {}", path.display());
            findings.push(Finding::warning(CHECK, seen, readable(&path)));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::ok(CHECK, summary(path, dir, needed)));
    }
    findings
}

fn summary(path: &Path, dir: &SecretDir, needed: &[NeededSecret]) -> String {
    let files = match dir.files.len() {
        1 => "1 file".to_owned(),
        number => format!("{number} files"),
    };
    let needs =
        if needed.is_empty() { "no service needs one" } else { "with all that services need" };
    format!("{}: {files}, {needs}", path.display())
}

fn missing(needed: &NeededSecret) -> Option<Finding> {
    let problem = needed.problem.as_ref()?;
    let seen = format!("{}: {problem}", needed.used_by);
    let help = "without its token a gateway runs and hard samples stay at the edge, and without its certificate it accepts no client; the agent reads the file again within seconds";
    Some(Finding::error(CHECK, seen, help))
}

/// Who else than root and the agent can read or replace a file, if somebody can.
fn access(path: &Path, access: SecretAccess, agent: u32) -> Option<Finding> {
    /// The permission bits of others, of writing for the group, and of the group.
    const OTHERS: u32 = 0o007;
    const GROUP_WRITES: u32 = 0o020;
    const GROUP: u32 = 0o070;
    let SecretAccess { owner, mode } = access;
    let shown = path.display();
    let (who, help) = if owner != 0 && owner != agent {
        let seen = format!("{shown} belongs to user {owner}, who can replace it");
        (seen, format!("chown root {shown}"))
    } else if mode & OTHERS != 0 {
        let seen = format!("every user of the node has access to {shown} (mode {mode:o})");
        (seen, format!("chmod o-rwx {shown}, and replace the secret if others use the node"))
    } else if mode & GROUP_WRITES != 0 {
        let seen = format!("the group of {shown} can replace it (mode {mode:o})");
        (seen, format!("chmod g-w {shown}"))
    } else if agent == 0 && mode & GROUP != 0 {
        let seen = format!("the group of {shown} has access to it (mode {mode:o})");
        (seen, format!("chmod g-rwx {shown}: an agent of root needs no group"))
    } else {
        return None;
    };
    Some(Finding::warning(CHECK, who, help))
}

fn create(path: &Path) -> String {
    format!(
        "create it for root and the group of the agent's user: install -d -m 0750 -o root -g GROUP {}",
        path.display()
    )
}

fn readable(path: &Path) -> String {
    format!(
        "let the group of the agent's user read it: chgrp GROUP {0}; chmod 0440 {0}",
        path.display()
    )
}
