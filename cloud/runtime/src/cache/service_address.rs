//! The address of a Service outside of the cluster, from the cached Service and Nodes.

use k8s_openapi::api::core::v1::Service;
use kube::runtime::reflector::ObjectRef;

use super::Caches;

impl Caches {
    /// The host and the port of a Service outside the cluster: that of its load balancer, or a node
    /// port. `node` is the only node with its Pods, if there is one.
    pub fn external_address(
        &self,
        service: &ObjectRef<Service>,
        port: u16,
        node: Option<&str>,
    ) -> Option<(String, i32)> {
        let service = self.services.get(service)?;
        let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref()?.first().cloned());
        if let Some(host) = ingress.and_then(|ingress| ingress.ip.or(ingress.hostname)) {
            return Some((host, i32::from(port)));
        }
        let ports = service.spec.as_ref()?.ports.as_ref()?;
        let named = ports.iter().find(|it| it.port == i32::from(port));
        let port = named.or_else(|| ports.first())?.node_port?;
        Some((self.node_address(node)?, port))
    }

    /// The address of a cloud node. A node port is open on every node; the first node by name is
    /// stable.
    fn node_address(&self, node: Option<&str>) -> Option<String> {
        let node = match node {
            Some(name) => self.node(name)?,
            None => self.nodes.first_cloud_address()?,
        };
        node.internal_address.clone()
    }
}
