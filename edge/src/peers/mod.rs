//! The exchange of contents with other nodes: the peers that the cloud names, what this node offers
//! to them, and what it fetches from them. The transfer itself is in `neptune-share`.

mod listener;
pub mod metrics;
mod models;
mod roster;
mod shared_sources;

use std::sync::{Arc, OnceLock};

use neptune_pinned_tls::TlsKey;
use neptune_program::listen::Refusals;
use neptune_share::peers::{ContentEvent, PeerServer, Roster};
use neptune_wire::{NodeName, PeerRoster};
use tokio::sync::{mpsc, watch};
use tracing::info;

use self::metrics::PeerCounters;
pub use self::{models::ModelContents, shared_sources::SharedSources};
use neptune_agent_core::domain::peer_settings::PeerSettings;

/// The exchange of contents with other nodes. Cheap to clone.
///
/// It starts without a peer. [`PeerService::set_roster`] names them, and may be called at any time:
/// a connection of a node that is no longer a peer ends within a second.
#[derive(Clone)]
pub struct PeerService(Arc<ServiceState>);

struct ServiceState {
    node: NodeName,
    settings: PeerSettings,
    /// All nodes of the site that the cloud names.
    roster: watch::Sender<Roster>,
    /// The peers that share contents of models.
    sharing: watch::Sender<Roster>,
    models: Arc<ModelContents>,
    datasets: Arc<SharedSources>,
    counters: Arc<PeerCounters>,
    refusals: Refusals,
    /// `None` until the node has a key.
    key: OnceLock<TlsKey>,
}

impl PeerService {
    /// Returns the service of a node, and what the owner of the model store has to do.
    /// `refusals` counts the connections that its server refuses.
    pub fn new(
        node: NodeName,
        settings: PeerSettings,
        refusals: Refusals,
    ) -> (Self, mpsc::Receiver<ContentEvent>) {
        let (sharing, shared) = watch::channel(Roster::default());
        let counters = Arc::<PeerCounters>::default();
        let (models, events) = ModelContents::new(shared, Arc::clone(&counters));
        let state = ServiceState {
            node,
            settings,
            roster: watch::Sender::new(Roster::default()),
            sharing,
            models: Arc::new(models),
            datasets: Arc::new(SharedSources::new(Arc::clone(&counters))),
            counters,
            refusals,
            key: OnceLock::new(),
        };
        (Self(Arc::new(state)), events)
    }

    /// Begins to fetch and to serve with the key of the node. Further calls have no effect.
    pub fn start(&self, key: &TlsKey) {
        let state = &self.0;
        if state.key.set(key.clone()).is_err() {
            return;
        }
        state.models.start(&state.node, key);
        if let Some(listen) = state.settings.listen {
            let sources = vec![Arc::clone(&state.models) as _, Arc::clone(&state.datasets) as _];
            let rate = state.settings.bytes_per_second;
            let server = PeerServer::new(key, state.roster.subscribe(), sources, rate)
                .counting(state.refusals.clone());
            state.counters.set_refused(server.refused());
            tokio::spawn(listener::run(server, listen));
        }
    }

    /// Sets the peers of the node.
    pub fn set_roster(&self, roster: &PeerRoster) {
        let roster::NodePeers { all, sharing } = roster::node_peers(&self.0.node, roster);
        let replace = |sender: &watch::Sender<Roster>, new: Roster| {
            sender.send_if_modified(|known| {
                let is_new = *known != new;
                *known = new;
                is_new
            })
        };
        replace(&self.0.sharing, sharing);
        if replace(&self.0.roster, all) {
            info!(peers = self.0.roster.borrow().nodes().count(), "peers of the node changed");
        }
    }

    /// The peers of the node now, and their changes.
    pub fn roster(&self) -> watch::Receiver<Roster> {
        self.0.roster.subscribe()
    }

    /// The key of the node, once it has one.
    pub fn key(&self) -> Option<&TlsKey> {
        self.0.key.get()
    }

    /// What this node exchanged with its peers.
    pub fn counters(&self) -> &PeerCounters {
        &self.0.counters
    }

    /// The contents of models on this node.
    pub fn models(&self) -> &Arc<ModelContents> {
        &self.0.models
    }

    /// The datasets that this node offers to its replicas. Each [`ContentSource`] decides which peer
    /// sees it.
    ///
    /// [`ContentSource`]: neptune_share::peers::ContentSource
    pub fn datasets(&self) -> &Arc<SharedSources> {
        &self.0.datasets
    }
}
