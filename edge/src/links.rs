//! Starts the link to the cloud and the link to the workers' broker, and forwards their events to
//! the agent's loop.

use std::path::PathBuf;

use neptune_link::{BrokerUrl, Link, LinkEvent, LinkEvents, LinkOptions, Message};
use tokio::sync::mpsc;

use crate::{config::Config, error::Error, event::AgentEvent};

/// Maximum packet size over `EventBus` in bytes: the 12 MiB limit of `KubeEdge`'s router, plus the
/// topic.
const MAX_EVENTBUS_PACKET: usize = 13 << 20;

/// Starts the link to the cloud and the link to the workers' broker; over `EventBus` they are the
/// same. `will`: the last will at the cloud's broker.
///
/// # Errors
/// [`Error::Config`] for invalid connection settings.
pub fn start_links(
    config: &Config,
    will: Message,
    sender: &mpsc::Sender<AgentEvent>,
) -> Result<(Link, Link), Error> {
    let mut options = cloud_options(config, format!("neptune-edge-{}", config.node));
    if config.event_bus.is_some() {
        // The workers use the same broker. A last will would not leave the node.
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

/// The options of the connection to the cloud's broker, with the subscription of this node.
pub fn cloud_options(config: &Config, client_id: String) -> LinkOptions {
    let mut options = config.broker.link_options(config.mqtt_url.clone(), client_id);
    options.ca_file = authorities(config, &config.mqtt_url);
    options.subscriptions = vec![config.prefix.downstream_filter(&config.node)];
    options
}

/// The options of the connection to the workers' broker.
pub fn local_options(config: &Config, client_id: String) -> LinkOptions {
    let mut options = LinkOptions::new(config.local_url.clone(), client_id);
    options.ca_file = authorities(config, &config.local_url);
    // This broker carries only workers' messages, on an address of the node's own configuration.
    options.allow_insecure = true;
    options
}

/// The file with the authorities of a broker, which only TLS uses.
fn authorities(config: &Config, url: &BrokerUrl) -> Option<PathBuf> {
    config.broker.mqtt_ca_file.clone().filter(|_| url.is_tls())
}

fn start_link(
    options: LinkOptions,
    named: impl Fn(LinkEvent) -> AgentEvent + Send + 'static,
    sender: &mpsc::Sender<AgentEvent>,
) -> Result<Link, Error> {
    let (link, events) = Link::start(options).map_err(|error| Error::Config {
        flag: "--mqtt-url, --local-broker, --mqtt-*-file",
        problem: error.to_string(),
        remedy: "correct the setting that the message names",
    })?;
    tokio::spawn(forward(events, named, sender.clone()));
    Ok(link)
}

/// Forwards a link's events, converted by `named`, until the link or the loop closes.
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
