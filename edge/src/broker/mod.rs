//! MQTT connections: the embedded local broker, and the links to the cloud and to the workers'
//! broker.

pub mod embedded;
pub mod links;
