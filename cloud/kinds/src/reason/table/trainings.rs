//! The reasons of a `TrainingModel`.

macro_rules! training_reasons {
    ($next:ident $($then:ident)* : $($before:tt)*) => {
        $next! { $($then)* : $($before)*
            TrainingModel {
                /// A setting is out of its range, or contradicts another one.
                TrainingInvalid: Obstacle => Failed: "the message names the field",
                /// The run has more workers than are supported.
                TooManyWorkers: Obstacle => Failed: "narrower selectors",
                /// The Model of the first weights has no web address with a digest.
                InitialWeightsInvalid: Obstacle => Pending: "set modelUrl and sha256sum",
                /// The output Model belongs to another `TrainingModel`.
                OutputConflict: Obstacle => Failed: "name another output",
                /// The API server rejects the aggregator's volume, Deployment or Service.
                AggregatorRefused: Obstacle => Failed: "read its message; often it is a quota",
                /// The controller has no rights for trainings in the namespace.
                RoleBindingMissing: Problem => Pending: "run the command in the message",
                /// The workers of the round train.
                Training: Progress => Running: "nothing",
                /// The weights are measured.
                Evaluating: Progress => Running: "nothing",
                /// The output Model receives the weights.
                Publishing: Progress => Running: "nothing",
                /// The last run has a result.
                Succeeded: Progress => Completed: "nothing",
                /// The spec suspends runs and rounds.
                Suspended: Progress => Pending: "nothing",
                /// The Dataset has not grown enough for the next run.
                WaitingForGrowth: Progress => Pending: "nothing",
                /// The aggregator is starting.
                WaitingForAggregator: Progress => Pending: "wait; the message has the Pod's problem",
                /// Workers have not sent their update, and the round waits for them.
                WaitingForWorkers: Problem => Pending: "the rows of workers name them",
                /// The aggregator cannot be reached.
                AggregatorUnreachable: Problem => Pending: "Service, firewall, or service.address",
                /// The aggregator serves another `TrainingModel`.
                OtherTrainingModel: Problem => Failed: "delete the PersistentVolumeClaim",
                /// The aggregator has other settings for the same run.
                RunChanged: Problem => Failed: "change aggregation.seed for another run",
                /// The aggregator has a later run.
                RunEnded: Problem => Pending: "the next run has a higher number",
                /// The aggregator does not know the key of a node.
                NodeNotTrusted: Problem => Pending: "restart the node's agent",
                /// A node reports another key than the trusted one.
                NodeKeyChanged: Problem => Pending: "kubectl neptune trust NODE",
                /// The first key of a node waits until a person trusts it.
                NodeKeyNotRecorded: Problem => Pending: "kubectl neptune trust NODE",
                /// The dataset has no sample.
                DatasetEmpty: Problem => Pending: "add data",
                /// Weights or the program cannot be downloaded.
                DownloadFailed: Problem => Pending: "the message has the URL",
                /// Weights or the program have another digest.
                DigestMismatch: Problem => Failed: "correct sha256sum",
                /// The program ended with an error.
                ScriptFailed: Problem => Failed: "read its last lines, which are in the message with --remote-logs training",
                /// The program did not end in time.
                TimedOut: Problem => Failed: "roundTimeout",
                /// The program wrote no weights or no valid result.
                OutputMissing: Problem => Failed: "correct the output of the program: docs/training-program.md",
                /// An update has other tensors than the base.
                ShapeMismatch: Problem => Failed: "the program on that node",
                /// An update contains NaN or an infinity.
                NotFinite: Problem => Failed: "a lower learning rate; the data",
                /// An update moves the weights too far.
                NormTooLarge: Problem => Failed: "the data of that node; clip",
                /// An update exceeds the size limit.
                UpdateTooLarge: Problem => Failed: "raise it",
                /// A worker reported more samples than its dataset has.
                SamplesNotCredible: Problem => Failed: "the counted number is used",
                /// The containers of a worker failed too often.
                BackoffLimit: Problem => Failed: "the last failure is in the message",
                /// A round ended with too few updates.
                TooFewWorkers: Problem => Failed: "the message names the workers that are missing",
                /// The workers whose updates count have fewer samples than the others.
                MostSamplesMissing: Problem => Failed: "the rows of workers name them",
                /// A user stopped the run.
                Stopped: Progress => Completed: "nothing",
                /// The same updates gave other weights.
                NonDeterministic: Problem => Failed: "the disk of the aggregator",
                /// The weights could not be measured.
                EvaluationFailed: Problem => Failed: "the message has the cause",
                /// The weights do not beat the published ones.
                NotBetter: Problem => Completed: "check whether the Dataset of the evaluation has samples of what is new",
                /// The run took longer than allowed.
                DeadlineExceeded: Problem => Failed: "raise activeDeadline, or start another run",
                /// The aggregator lost the files of a run, which starts again.
                RoundRepeated: Problem => Pending: "nothing: another run begins",
                /// The aggregator lost published weights.
                ContentLost: Problem => Failed: "a copy, or train again",
                /// A newer agent or aggregator reports a reason that this controller does not know.
                TrainingFailed: Problem => Failed: "the message has the cause",
            }
        }
    };
}
