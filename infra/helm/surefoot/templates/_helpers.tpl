{{- define "surefoot.labels" -}}
app.kubernetes.io/name: surefoot
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "surefoot.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "surefoot.account" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{/* Variables of every container. `with`: further ones. */}}
{{- define "surefoot.env" -}}
- {name: SUREFOOT_BOOTSTRAP_SERVERS, value: {{ .root.Values.kafka.bootstrapServers | quote }}}
- {name: SUREFOOT_DRAIN_TIMEOUT_S, value: {{ .root.Values.drainSeconds | quote }}}
# the pod's name: for a StatefulSet the same after a restart
- name: SUREFOOT_INSTANCE
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
{{- with .root.Values.archive.location }}
- {name: SUREFOOT_ARCHIVE, value: {{ . | quote }}}
{{- end }}
{{- range $name, $value := merge (dict) .with .root.Values.kafka.settings .root.Values.settings }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* The pod of one role: root, role, args, with (variables), resources; port and ready are of its
probes; storage: the name of a volume for /var/lib/surefoot. */}}
{{- define "surefoot.pod" -}}
metadata:
  labels: {{- include "surefoot.labels" . | nindent 4 }}
spec:
  serviceAccountName: {{ include "surefoot.account" .root }}
  automountServiceAccountToken: false
  # variables like SUREFOOT_GATEWAY_PORT=tcp://10.0.0.1:8787
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ add .root.Values.drainSeconds 20 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .role }}
      image: {{ include "surefoot.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: {{ toJson .args }}
      env: {{- include "surefoot.env" . | nindent 8 }}
      {{- with .root.Values.secrets }}
      envFrom:
        {{- range . }}
        - secretRef: {{ toJson . }}
        {{- end }}
      {{- end }}
      {{- if .port }}
      ports:
        {{- if ne (int .port) 9100 }}
        - {name: http, containerPort: {{ .port }}}
        {{- end }}
        - {name: metrics, containerPort: 9100}
      startupProbe:
        httpGet: {path: /health, port: {{ .port }}}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /health, port: {{ .port }}}
        periodSeconds: 10
        timeoutSeconds: 5
      readinessProbe:
        httpGet: {path: {{ .ready }}, port: {{ .port }}}
        periodSeconds: 5
        timeoutSeconds: 5
      {{- if ne (int .port) 9100 }}
      # requests arrive until every node knows that the pod is leaving
      lifecycle: {preStop: {exec: {command: [sleep, "5"]}}}
      {{- end }}
      {{- end }}
      resources: {{ toJson .resources }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
        {{- with .storage }}
        - {name: {{ . }}, mountPath: /var/lib/surefoot}
        {{- end }}
        {{- with .root.Values.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - {name: tmp, emptyDir: {}}
    {{- with .root.Values.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .root.Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
