{{/* The labels of every object. Selectors have app.kubernetes.io/name alone. */}}
{{- define "neptune.labels" -}}
app.kubernetes.io/part-of: neptune
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* image (list . IMAGE): repository:tag, or repository@digest. */}}
{{- define "neptune.image" -}}
{{- $tag := (index . 1).tag | default (index . 0).Chart.AppVersion -}}
{{ (index . 1).repository }}{{ ternary "@" ":" (hasPrefix "sha256:" $tag) }}{{ $tag }}
{{- end }}

{{/* The nodes of the cloud: not KubeEdge's edge nodes, where the API server is out of reach. */}}
{{- define "neptune.cloudNodes" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - {key: node-role.kubernetes.io/edge, operator: DoesNotExist}
          - {key: kubernetes.io/os, operator: In, values: [linux]}
{{- end }}

{{/* Of every container. */}}
{{- define "neptune.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* env MAP: variables of the values, after those of the template. */}}
{{- define "neptune.env" -}}
{{- range $name, $value := . }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
