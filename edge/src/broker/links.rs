//! Starts the link to the cloud and the one to the workers' broker, and forwards what they receive
//! as events.

use neptune_link::{BrokerUrl, Link, LinkEvent, LinkEvents, LinkOptions, Message};
use tokio::sync::mpsc;

use crate::{config::Config, error::Error, event::AgentEvent};

/// Bytes of a packet over `EventBus`: the 12 MiB that `KubeEdge`'s router takes, and the topic.
const MAX_EVENTBUS_PACKET: usize = 13 << 20;

/// Starts the link to the cloud and the one to the workers' broker. They are the same over
/// `EventBus`. `will`: what the cloud's broker publishes when the node is lost.
pub fn start_links(
    config: &Config,
    will: Message,
    sender: &mpsc::Sender<AgentEvent>,
) -> Result<(Link, Link), Error> {
    let mut options = cloud_options(config, format!("neptune-edge-{}", config.node));
    if config.event_bus.is_some() {
        // The workers are at the same broker. A will would not leave the node.
        options.subscriptions.push(config.prefix.worker_info_filter());
        options.max_packet_size = MAX_EVENTBUS_PACKET;
        let workers = format!("{}/workers/", config.prefix);
        let named = move |event| match event {
            LinkEvent::Message(message) if message.topic.starts_with(&workers) => {
                AgentEvent::WorkerBroker(LinkEvent::Message(message))
            }
            event => AgentEvent::Cloud(event),
        };
        let link = start_link(options, named, sender)?;
        return Ok((link.clone(), link));
    }
    options.will = Some(will);
    let link = start_link(options, AgentEvent::Cloud, sender)?;
    let mut options = local_options(config, format!("neptune-edge-{}-local", config.node));
    options.subscriptions = vec![config.prefix.worker_info_filter()];
    Ok((link, start_link(options, AgentEvent::WorkerBroker, sender)?))
}

/// How the cloud's broker is reached, and what is for this node.
pub fn cloud_options(config: &Config, client_id: String) -> LinkOptions {
    let mut options = link_options(config, &config.mqtt_url, client_id);
    let login = config.login.clone();
    options.certificate_file = login.certificate_file;
    options.key_file = login.key_file;
    options.password_file = login.password_file;
    options.allow_insecure = login.allow_insecure;
    options.subscriptions = vec![config.prefix.downstream_filter(&config.node)];
    options
}

/// How the workers' broker is reached.
pub fn local_options(config: &Config, client_id: String) -> LinkOptions {
    let mut options = link_options(config, &config.local_url, client_id);
    // Workers' numbers only, on an address that the node's own configuration names.
    options.allow_insecure = true;
    options
}

fn link_options(config: &Config, url: &BrokerUrl, client_id: String) -> LinkOptions {
    let mut options = LinkOptions::new(url.clone(), client_id);
    options.ca_file = config.ca_file.clone().filter(|_| url.is_tls());
    options
}

fn start_link(
    options: LinkOptions,
    named: impl Fn(LinkEvent) -> AgentEvent + Send + 'static,
    sender: &mpsc::Sender<AgentEvent>,
) -> Result<Link, Error> {
    let (link, events) = Link::start(options).map_err(|error| Error::Config {
        flag: "--mqtt-url, --local-broker, --mqtt-*-file",
        problem: error.to_string(),
        remedy: "correct the one that is named",
    })?;
    tokio::spawn(forward(events, named, sender.clone()));
    Ok(link)
}

/// Passes a link's events on, as `named` ones.
pub async fn forward(
    mut link: LinkEvents,
    named: impl Fn(LinkEvent) -> AgentEvent,
    events: mpsc::Sender<AgentEvent>,
) {
    while let Some(event) = link.next().await {
        if events.send(named(event)).await.is_err() {
            return;
        }
    }
}
