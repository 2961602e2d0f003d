//! What the nodes of a model should have: its server. Nodes without Secrets of their own share one text.
//! A part of `plan`.

use std::{collections::HashMap, sync::Arc};

use neptune_api::{InferenceModel, InferenceModelSpec};
use neptune_wire::{ModelServer, NodeName, ObjectContent, RestartTime, Role};

use crate::{
    fleet::{NodeContents, encode_contents},
    inference_model::validate::ValidInferenceModel,
    kubernetes::identity,
    worker::{config::seal::Seals, restart::Restart},
};

/// Makes the contents of the nodes of a model, each distinct one once.
pub struct ServerContents<'a> {
    valid: &'a ValidInferenceModel,
    /// The server, without what differs between nodes.
    server: ModelServer,
    /// The content without the server.
    object: ObjectContent,
    /// The restart that a person requested.
    restart: Option<Restart>,
    /// The contents without Secrets, by whether the server is restarted.
    common: HashMap<bool, NodeContents>,
    /// The values that have to be sealed.
    seals: Seals,
}

impl<'a> ServerContents<'a> {
    /// The contents of the nodes of a valid model.
    pub fn new(model: &InferenceModel, valid: &'a ValidInferenceModel) -> Self {
        let restart = Restart::requested_of_server(&model.metadata);
        // A setting of the controller, which reaches no node.
        let spec = InferenceModelSpec { rollout: None, ..model.spec.clone() };
        let object = identity::content::<InferenceModel>(valid.metadata.clone(), &spec);
        let server = server(model, valid);
        Self { valid, server, object, restart, common: HashMap::new(), seals: Seals::new() }
    }

    /// The values that have to be sealed for the nodes.
    pub fn into_seals(self) -> Seals {
        self.seals
    }

    /// The content of a node.
    pub fn on(&mut self, node: &NodeName) -> NodeContents {
        let restarted_at = self.restart.as_ref().and_then(|it| it.on_node(node, Role::Edge));
        let restarted_at = restarted_at.cloned();
        let is_restarted = restarted_at.is_some();
        let config = self.valid.config.ready();
        let is_common = config.is_none_or(|config| config.secrets.is_empty());
        if let Some(common) = self.common.get(&is_restarted).filter(|_| is_common) {
            return Arc::clone(common);
        }
        let contents = self.contents(node, restarted_at);
        if is_common {
            self.common.insert(is_restarted, Arc::clone(&contents));
        }
        contents
    }

    fn contents(&mut self, node: &NodeName, restarted_at: Option<RestartTime>) -> NodeContents {
        let Self { valid, server, object, seals, .. } = self;
        let mut serving = ModelServer { restarted_at, ..server.clone() };
        if let Some(config) = valid.config.ready() {
            let container = (&serving.name, &mut serving.program);
            config.add_on_node(container, None, (node, valid.seal_keys.get(node)), seals);
        }
        let content = ObjectContent { serving: Some(Box::new(serving)), ..object.clone() };
        encode_contents([(valid.key.clone(), content)].into())
    }
}

/// The server of a valid model, as its node gets it.
pub fn server(model: &InferenceModel, valid: &ValidInferenceModel) -> ModelServer {
    let program = &valid.program;
    ModelServer {
        name: valid.name.clone(),
        model_name: model.spec.model_name.clone(),
        program: program.container.clone(),
        port: valid.port,
        grpc_port: valid.grpc_port,
        model: valid.version.clone(),
        transformer: program.transformer.clone(),
        reload: program.reload,
        health: program.health.clone(),
        hold: valid.hold,
        restarted_at: None,
    }
}
