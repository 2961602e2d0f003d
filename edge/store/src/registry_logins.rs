//! The logins of the node at container registries, looked up for each download.

use std::{fmt, future::Future, sync::Arc};

use futures::{FutureExt as _, future::BoxFuture};
use neptune_hub::Login;

type Find = dyn Fn(String) -> BoxFuture<'static, Result<Option<Login>, String>> + Send + Sync;

/// The logins of the node at registries. Cheap to clone.
#[derive(Clone)]
pub struct RegistryLogins(Arc<Find>);

impl RegistryLogins {
    /// `find` returns the login for a repository, written as `host/repository`, or why the logins
    /// cannot be read. It is called for each download, so that logins can be replaced.
    pub fn new<F>(find: impl Fn(String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Option<Login>, String>> + Send + 'static,
    {
        Self(Arc::new(move |repository| find(repository).boxed()))
    }

    /// The login for a repository, or why the logins cannot be read.
    pub(crate) async fn find(&self, repository: String) -> Result<Option<Login>, String> {
        (self.0)(repository).await
    }
}

impl fmt::Debug for RegistryLogins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RegistryLogins").finish()
    }
}
