//! The options of a connection to an MQTT broker, besides its address.

use std::path::PathBuf;

use clap::Args;
use neptune_link::{BrokerUrl, LinkOptions};

/// The files and the exception of a connection to a broker.
#[derive(Debug, Clone, Default, Args)]
pub struct BrokerFlags {
    /// PEM file with the certificate authorities that are trusted to sign the broker's certificate.
    /// Required for mqtts.
    #[arg(long, env = "NEPTUNE_MQTT_CA_FILE", value_name = "FILE")]
    pub mqtt_ca_file: Option<PathBuf>,
    /// PEM file with the client certificate for the broker. All broker files are read again for
    /// each connection, so a renewed certificate needs no restart. With it the dates of the broker's
    /// certificate are not compared.
    #[arg(long, env = "NEPTUNE_MQTT_CERT_FILE", value_name = "FILE", requires = "mqtt_key_file")]
    pub mqtt_cert_file: Option<PathBuf>,
    /// PEM file with the private key of the client certificate.
    #[arg(long, env = "NEPTUNE_MQTT_KEY_FILE", value_name = "FILE", requires = "mqtt_cert_file")]
    pub mqtt_key_file: Option<PathBuf>,
    /// File with the password of the user in the broker's URL. Replaces a password in the URL.
    #[arg(long, env = "NEPTUNE_MQTT_PASSWORD_FILE", value_name = "FILE")]
    pub mqtt_password_file: Option<PathBuf>,
    /// Allow a non-loopback broker without TLS and authentication. Anybody who can connect to that
    /// broker can start containers on the nodes.
    #[arg(long, env = "NEPTUNE_INSECURE_BROKER")]
    pub insecure_broker: bool,
}

impl BrokerFlags {
    /// Returns the options of a connection to this broker with these files.
    pub fn link_options(&self, url: BrokerUrl, client_id: impl Into<String>) -> LinkOptions {
        LinkOptions {
            ca_file: self.mqtt_ca_file.clone(),
            certificate_file: self.mqtt_cert_file.clone(),
            key_file: self.mqtt_key_file.clone(),
            password_file: self.mqtt_password_file.clone(),
            allow_insecure: self.insecure_broker,
            ..LinkOptions::new(url, client_id)
        }
    }
}
