//! The `enroll` command: makes tokens with which nodes join, and their `EdgeNodes`.

mod text;

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::Path,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Service};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use neptune_api::{EdgeNode, EdgeNodeSpec};
use neptune_cloud_kinds::{
    error_class::Class,
    join::{
        addresses::join_url,
        record::is_recorded,
        token_entry::{MAX_ENTRY_BYTES, TokenEntry, entries},
    },
    nodes::keys::KeyRecord,
};
use neptune_cloud_runtime::{
    join::tokens,
    kubernetes::edge_node_writes::{self, patch_labels},
};
use neptune_join::JoinToken;
use neptune_pinned_tls::certificate_pin;
use neptune_wire::{KeyPin, NodeName};

use self::text::{Invitation, csv, node_names, page};
use crate::{
    cli::{Enroll, EnrollFormat},
    commands::connect::connect,
    error::Error,
};

/// The Service of the join server, which the manifests create.
const JOIN_SERVICE: &str = "neptune-join";

/// Attempts to write the tokens, which joining nodes write at the same time.
const MAX_ATTEMPTS: u32 = 10;

/// Permits nodes to join, and prints the command of each.
///
/// # Errors
/// No usable kubeconfig, no answer from the API server, a node that has another trusted key or is
/// revoked without `--replace`, or a cluster without the authority of a fleet. No token was made
/// then.
pub async fn enroll(flags: Enroll) -> Result<(), Error> {
    let nodes = nodes(&flags)?;
    let (client, _) = connect(&flags.cluster).await?;
    let maps = tokens::api(&client, &flags.namespace);
    let authority = authority(&tokens::get(&maps).await?, &flags.namespace)?;
    let (url, is_guessed) = match &flags.url {
        Some(url) => (url.clone(), false),
        None => find_url(&client, &flags.namespace).await?,
    };
    let mut known = Vec::new();
    for node in &nodes {
        let object = edge_node_writes::get(&client, node).await?;
        if let Some(object) = object.as_ref().filter(|_| !flags.replace) {
            check(node, object)?;
        }
        known.push(object);
    }
    for (node, object) in nodes.iter().zip(known) {
        register(&client, node, object, &flags.label).await?;
    }
    let invitations = invite(&flags, &nodes, &authority)?;
    store(&client, &flags, &invitations).await?;
    let output = match flags.output {
        EnrollFormat::Text => page(&invitations, &url, is_guessed, now()),
        EnrollFormat::Csv => csv(&invitations, &url),
    };
    // A closed pipe is not an error.
    let _ = io::stdout().write_all(output.as_bytes());
    Ok(())
}

/// The names of the command line and of the file, each once.
fn nodes(flags: &Enroll) -> Result<Vec<NodeName>, Error> {
    let mut nodes = flags.nodes.clone();
    if let Some(path) = &flags.file {
        let text = if path == Path::new("-") {
            let mut text = String::new();
            io::stdin().read_to_string(&mut text).map(|_| text)
        } else {
            fs::read_to_string(path)
        };
        let error = |why: String| Error::Enroll(format!("--file {}: {why}", path.display()));
        nodes.extend(node_names(&text.map_err(|why| error(why.to_string()))?).map_err(error)?);
    }
    nodes.sort();
    nodes.dedup();
    if nodes.is_empty() {
        return Err(Error::Enroll(
            "there is no node to enroll; name one, or use --file".to_owned(),
        ));
    }
    Ok(nodes)
}

/// The pin of the authority, which the controller wrote.
fn authority(map: &ConfigMap, namespace: &str) -> Result<KeyPin, Error> {
    let certificate = map.data.as_ref().and_then(|data| data.get(tokens::AUTHORITY));
    certificate.and_then(|pem| certificate_pin(pem)).ok_or_else(|| {
        Error::Enroll(format!(
            "ConfigMap {namespace}/{} has no {}: the controller writes it when it runs with --ca-secret; check: kubectl -n {namespace} get pods",
            tokens::TOKENS,
            tokens::AUTHORITY
        ))
    })
}

/// The URL by the Service, and whether it is a guess.
async fn find_url(client: &Client, namespace: &str) -> Result<(String, bool), Error> {
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let service = services.get_opt(JOIN_SERVICE).await;
    let service = service.map_err(Error::api(format!("get Service {namespace}/{JOIN_SERVICE}")))?;
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await.map_err(Error::api("list nodes"))?;
    service.and_then(|service| join_url(&service, &nodes.items)).ok_or_else(|| {
        Error::Enroll(format!(
            "the address of the join server is not known: Service {namespace}/{JOIN_SERVICE} is missing or has no address yet; add --url https://HOST:30884"
        ))
    })
}

/// Whether the token of this node would be refused.
fn check(node: &NodeName, object: &EdgeNode) -> Result<(), Error> {
    let record = KeyRecord::from_edge_node(object);
    let why = if object.spec.revoked {
        "is revoked".to_owned()
    } else if let Some(key) = record.trusted.filter(|_| !object.spec.certificate_serials.is_empty())
    {
        format!("has joined with the key {}", key.short())
    } else {
        return Ok(());
    };
    Err(Error::Enroll(format!(
        "node {node} {why}; to let it join with any key: neptune-cloud enroll {node} --replace"
    )))
}

/// Creates the `EdgeNode`, or adds labels to it.
async fn register(
    client: &Client,
    node: &NodeName,
    object: Option<EdgeNode>,
    labels: &[(String, String)],
) -> Result<(), Error> {
    if object.is_none() {
        let api: Api<EdgeNode> = Api::all(client.clone());
        let mut object = EdgeNode::new(node.as_str(), EdgeNodeSpec::default());
        object.metadata.labels = (!labels.is_empty()).then(|| labels.iter().cloned().collect());
        let created = api.create(&PostParams::default(), &object).await;
        created.map_err(Error::api(format!("create EdgeNode {node}")))?;
    } else if !labels.is_empty() {
        patch_labels(client, node, labels).await?;
    }
    Ok(())
}

/// Makes a token for each node.
fn invite(
    flags: &Enroll,
    nodes: &[NodeName],
    authority: &KeyPin,
) -> Result<Vec<Invitation>, Error> {
    let expires = now().saturating_add(flags.ttl).unwrap_or(Timestamp::MAX);
    let invite = |node: &NodeName| {
        let random = neptune_program::random::secure();
        let random = random.map_err(|why| Error::Enroll(format!("/dev/urandom: {why}")))?;
        let token = JoinToken::new(node.clone(), authority, random);
        let token = token.map_err(|why| Error::Enroll(why.to_string()))?;
        let entry = TokenEntry::new(node.clone(), &token.secret, expires, flags.replace);
        Ok(Invitation { token, entry })
    };
    nodes.iter().map(invite).collect()
}

/// Adds the tokens to those of the cluster, and removes those that have ended.
async fn store(client: &Client, flags: &Enroll, invitations: &[Invitation]) -> Result<(), Error> {
    let maps = tokens::api(client, &flags.namespace);
    for _ in 0..MAX_ATTEMPTS {
        let mut map = tokens::get(&maps).await?;
        let (present, _) = entries(&tokens::data(&map));
        // A used token is the controller's to remove.
        let ended =
            present.iter().filter(|(_, token)| token.is_spent(is_recorded(None, token), now()));
        for (id, _) in ended {
            map.data.get_or_insert_default().remove(id.as_str());
        }
        for Invitation { token, entry } in invitations {
            tokens::insert(&mut map, &token.id, entry);
        }
        let bytes: usize =
            map.data.iter().flatten().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > MAX_ENTRY_BYTES {
            return Err(Error::Enroll(format!(
                "ConfigMap {}/{} would have {bytes} bytes; it has room for {MAX_ENTRY_BYTES}: enroll fewer nodes at once, about 2500, or wait until earlier tokens have ended",
                flags.namespace,
                tokens::TOKENS
            )));
        }
        match tokens::replace(&maps, &map).await {
            Ok(_) => return Ok(()),
            Err(error) if error.class() == Class::Conflict => {}
            Err(error) => return Err(error.into()),
        }
    }
    let text = "other requests write the tokens at the same time; run the command again";
    Err(Error::Enroll(text.to_owned()))
}

#[expect(clippy::disallowed_methods, reason = "I/O: reads the clock for the pure code")]
fn now() -> Timestamp {
    Timestamp::now()
}
