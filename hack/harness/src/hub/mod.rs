//! A model hub on loopback, as strict as the public one: large files are redirected to another
//! server that refuses tokens, small ones to a path of the hub, lists have pages, and errors have
//! codes. Its faults are switched by tests.

mod answers;
mod repository;

use std::sync::{Arc, Mutex};

pub use self::repository::{Repository, git_id, sha256};
use crate::http_stub::{HttpStub, StubReply, StubRequest, ranged};

/// The faults of a hub. By default it has none.
#[derive(Debug, Clone, Default)]
pub struct HubFaults {
    /// The server of large files ends each response after this number of bytes.
    pub cut: Option<usize>,
    /// Number of responses of the server of large files that are left before its entity tags change.
    pub etag_changes_after: Option<usize>,
    /// Large files are redirected to this URL.
    pub redirect: Option<String>,
    /// Number of requests that are left to refuse, and the headers of the refusals.
    pub rate_limited: Option<(usize, Vec<(String, String)>)>,
    /// Large files have other bytes than the hub states.
    pub wrong_bytes: bool,
}

/// A running hub with its server of large files.
#[derive(Debug)]
pub struct Hub {
    api: HttpStub,
    files: HttpStub,
    state: Arc<Mutex<HubState>>,
}

/// What both servers share.
#[derive(Debug, Default)]
pub(crate) struct HubState {
    pub(crate) repositories: Vec<Repository>,
    pub(crate) faults: HubFaults,
    /// Port of the server of large files.
    pub(crate) files_port: u16,
    /// Number of files on one page of a list.
    pub(crate) page: usize,
}

impl Hub {
    /// Starts a hub with these repositories.
    ///
    /// # Panics
    /// If loopback has no free port.
    pub async fn start(repositories: Vec<Repository>) -> Self {
        let state = HubState { repositories, page: 1000, ..HubState::default() };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        let files =
            HttpStub::start(move |request| large_file(&mut shared.lock().unwrap(), request));
        let files = files.await;
        state.lock().unwrap().files_port = files.port;
        let shared = Arc::clone(&state);
        let api =
            HttpStub::start(move |request| answers::answer(&mut shared.lock().unwrap(), request));
        Self { api: api.await, files, state }
    }

    /// The URL of the hub.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.api.port)
    }

    /// Changes the faults.
    ///
    /// # Panics
    /// If a request panicked.
    pub fn set_faults(&self, change: impl FnOnce(&mut HubFaults)) {
        change(&mut self.state.lock().unwrap().faults);
    }

    /// Changes the repositories.
    ///
    /// # Panics
    /// If a request panicked.
    pub fn set_repositories(&self, change: impl FnOnce(&mut Vec<Repository>)) {
        change(&mut self.state.lock().unwrap().repositories);
    }

    /// Sets the number of files on one page of a list.
    ///
    /// # Panics
    /// If a request panicked.
    pub fn set_page(&self, files: usize) {
        self.state.lock().unwrap().page = files;
    }

    /// The requests to the hub itself, as method and path.
    pub fn requests(&self) -> Vec<String> {
        let requests = self.api.requests().into_iter();
        requests.map(|request| format!("{} {}", request.method, request.path)).collect()
    }

    /// The requests to the hub and to the server of large files.
    pub fn all_requests(&self) -> Vec<StubRequest> {
        [self.api.requests(), self.files.requests()].concat()
    }

    /// The requests for large files.
    pub fn downloads(&self) -> Vec<StubRequest> {
        self.files.requests()
    }

    /// The bytes of large files that were sent.
    pub fn sent(&self) -> u64 {
        self.files.sent()
    }
}

fn large_file(state: &mut HubState, request: &StubRequest) -> StubReply {
    // As the stores behind the public hub: a URL has one signature, and a token is a second one.
    if request.header("authorization").is_some() {
        return StubReply::status(400);
    }
    let digest = request.path.trim_start_matches("/files/");
    if request.query != "signature=valid" {
        return StubReply::status(403);
    }
    let mut contents = state.repositories.iter().flat_map(Repository::large_contents);
    let content = contents.find(|content| sha256(content) == digest);
    let Some(mut content) = content.map(<[u8]>::to_vec) else { return StubReply::status(404) };
    let faults = &mut state.faults;
    if faults.wrong_bytes {
        content[0] ^= 1;
    }
    let tag = match &mut faults.etag_changes_after {
        Some(0) => "\"changed\"".to_owned(),
        Some(left) => {
            *left -= 1;
            format!("\"{digest}\"")
        }
        None => format!("\"{digest}\""),
    };
    StubReply { cut: faults.cut, ..ranged(request, &content, &tag) }
}
